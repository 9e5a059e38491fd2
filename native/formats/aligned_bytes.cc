#include "formats/aligned_bytes.h"

#include <cstdlib>
#include <new>

#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace ramet {
namespace {
constexpr size_t kHugePage = size_t{2} << 20;
}

AlignedBytes::AlignedBytes(size_t size) : size_(size) {
  if (size == 0) return;
  const size_t alignment = size >= kHugePage ? kHugePage : 64;
  const size_t rounded = (size + alignment - 1) / alignment * alignment;
  data_ = static_cast<uint8_t*>(std::aligned_alloc(alignment, rounded));
  if (data_ == nullptr) throw std::bad_alloc();
#if defined(__linux__)
  // Advice only: a kernel without transparent huge pages says no, and nothing is lost.
  if (alignment == kHugePage) (void)madvise(data_, rounded, MADV_HUGEPAGE);
#endif
}

AlignedBytes::~AlignedBytes() { std::free(data_); }

}  // namespace ramet
