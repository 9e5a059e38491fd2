// An owned range of zeroed memory whose untouched pages cost nothing: for pools and arenas sized for the worst case.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>

namespace ramet {

class MappedBytes {
 public:
  // kHuge: 2 MiB at a time where the system can, for memory that is read in no particular order.
  enum class Pages { kNormal, kHuge };

  MappedBytes() = default;
  // 64-byte aligned at least. Raises with the size if the system refuses.
  explicit MappedBytes(size_t size, Pages pages = Pages::kNormal);
  ~MappedBytes();
  MappedBytes(MappedBytes&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}
  MappedBytes& operator=(MappedBytes&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    return *this;
  }

  uint8_t* data() const { return data_; }
  size_t size() const { return size_; }

 private:
  uint8_t* data_ = nullptr;
  size_t size_ = 0;
};

}  // namespace ramet
