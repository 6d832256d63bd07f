// The basics of all arithmetic on a GPU. Includes no CUDA header.
//
// Every function that takes a Gpu enqueues its work on the stream and returns at once: an empty
// string, or an error message.
#ifndef TF_TI_CC_COMPUTE_GPU_H_
#define TF_TI_CC_COMPUTE_GPU_H_

#include <cstddef>
#include <cstdint>
#include <string>

struct CUstream_st;  // cudaStream_t points to it

namespace tf_ti {

// Arithmetic's view of a GPU: whoever has one implements it. The GPU is the current device of the
// thread.
class Gpu {
 public:
  virtual ~Gpu() = default;

  virtual CUstream_st* stream() const = 0;

  // Device memory, aligned to 16 bytes, that stays as it is until all work that the asking function
  // enqueued is done. Null where there is none left.
  virtual void* Allocate(int64_t bytes) = 0;

  // True if CUDA itself failed, and not the input is wrong.
  bool has_failed() const { return has_failed_; }
  void SetFailed() { has_failed_ = true; }

 private:
  bool has_failed_ = false;
};

// Copies from anywhere to anywhere. Memory of the host must stay as it is until the stream has got
// there.
std::string CopyMemory(size_t bytes, const void* src, void* dst, Gpu* gpu);

}  // namespace tf_ti

#endif  // TF_TI_CC_COMPUTE_GPU_H_
