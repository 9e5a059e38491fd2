// An owned, 64-byte aligned buffer. Large ones ask for huge pages: decode walks all weights once a token, and with 4 KiB pages
// every 4 KiB costs a miss in the TLB.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>

namespace ramet {

class AlignedBytes {
 public:
  AlignedBytes() = default;
  explicit AlignedBytes(size_t size);  // contents are indeterminate; throws std::bad_alloc
  ~AlignedBytes();
  AlignedBytes(AlignedBytes&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}
  AlignedBytes& operator=(AlignedBytes&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    return *this;
  }

  uint8_t* data() { return data_; }
  const uint8_t* data() const { return data_; }
  size_t size() const { return size_; }

 private:
  uint8_t* data_ = nullptr;
  size_t size_ = 0;
};

}  // namespace ramet
