// What all arithmetic on a GPU shares. Includes no CUDA header.
//
// Every function that takes a Gpu enqueues its work on the stream and returns at once, an empty
// string or what is wrong.
#ifndef TF_TI_CC_COMPUTE_GPU_H_
#define TF_TI_CC_COMPUTE_GPU_H_

#include <cstddef>
#include <cstdint>
#include <string>

struct CUstream_st;  // what cudaStream_t points to

namespace tf_ti {

// How arithmetic asks for a GPU, whoever has one. The GPU is the current device of the thread.
class Gpu {
 public:
  virtual ~Gpu() = default;

  virtual CUstream_st* stream() const = 0;

  // Device memory, aligned to 16 bytes, that stays as it is until all that the asking function
  // enqueued is done. Null where there is none left.
  virtual void* Allocate(int64_t bytes) = 0;

  // Whether CUDA itself failed, so that what is wrong is not the input.
  bool has_failed() const { return has_failed_; }
  void SetFailed() { has_failed_ = true; }

 private:
  bool has_failed_ = false;
};

// From anywhere to anywhere. Memory of the host must stay as it is until the stream has got there.
std::string CopyMemory(size_t bytes, const void* src, void* dst, Gpu* gpu);

}  // namespace tf_ti

#endif  // TF_TI_CC_COMPUTE_GPU_H_
