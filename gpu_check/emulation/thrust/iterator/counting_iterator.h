// Thrust's iterator over a number and those after it.
#ifndef TF_TI_GPU_CHECK_EMULATION_COUNTING_ITERATOR_H_
#define TF_TI_GPU_CHECK_EMULATION_COUNTING_ITERATOR_H_

namespace thrust {

template <typename T>
struct counting_iterator {
  explicit counting_iterator(T first) : first(first) {}
  T operator[](T i) const { return first + i; }
  T first;
};

}  // namespace thrust

#endif  // TF_TI_GPU_CHECK_EMULATION_COUNTING_ITERATOR_H_
