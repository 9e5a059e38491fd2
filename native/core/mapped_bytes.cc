#include "core/mapped_bytes.h"

#include <sys/mman.h>

#include "core/status.h"

namespace ramet {

MappedBytes::MappedBytes(size_t size) : size_(size) {
  if (size == 0) return;
  void* data = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (data == MAP_FAILED) Raise("cannot map ", size, " bytes of memory");
  data_ = static_cast<uint8_t*>(data);
}

MappedBytes::~MappedBytes() {
  if (data_) munmap(data_, size_);
}

}  // namespace ramet
