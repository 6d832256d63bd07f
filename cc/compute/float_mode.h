// The floating-point mode of a thread: the rounding, and whether subnormal numbers are zeros.
#ifndef TF_TI_CC_COMPUTE_FLOAT_MODE_H_
#define TF_TI_CC_COMPUTE_FLOAT_MODE_H_

#include <cfenv>

namespace tf_ti {

// The mode that the calling thread has now.
class FloatMode {
 public:
  FloatMode() { std::fegetenv(&mode_); }

  void Set() const { std::fesetenv(&mode_); }

 private:
  std::fenv_t mode_;
};

// Gives the calling thread a mode for as long as this object lives.
class ScopedFloatMode {
 public:
  explicit ScopedFloatMode(const FloatMode& mode) { mode.Set(); }
  ScopedFloatMode(const ScopedFloatMode&) = delete;
  ScopedFloatMode& operator=(const ScopedFloatMode&) = delete;
  ~ScopedFloatMode() { own_.Set(); }

 private:
  const FloatMode own_;
};

}  // namespace tf_ti

#endif  // TF_TI_CC_COMPUTE_FLOAT_MODE_H_
