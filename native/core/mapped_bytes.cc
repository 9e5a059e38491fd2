#include "core/mapped_bytes.h"

#include <sys/mman.h>

#include "core/status.h"

namespace ramet {

MappedBytes::MappedBytes(size_t size, Pages pages) : size_(size) {
  if (size == 0) return;
  void* data = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (data == MAP_FAILED) Raise("cannot map ", size, " bytes of memory");
  data_ = static_cast<uint8_t*>(data);
#if defined(MADV_HUGEPAGE)
  if (pages == Pages::kHuge) madvise(data, size, MADV_HUGEPAGE);  // a wish: systems without huge pages refuse it
#else
  static_cast<void>(pages);
#endif
}

MappedBytes::~MappedBytes() {
  if (data_) munmap(data_, size_);
}

}  // namespace ramet
