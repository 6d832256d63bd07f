// Shapes of shape functions as specifications take them.
#ifndef TF_TI_CC_OPS_KNOWN_SHAPE_H_
#define TF_TI_CC_OPS_KNOWN_SHAPE_H_

#include <cstdint>
#include <vector>

#include "tensorflow/core/framework/shape_inference.h"
#include "tensorflow/core/framework/tensor_shape.h"

namespace tf_ti {

// A shape, as far as it is known.
inline tensorflow::PartialTensorShape KnownShape(tensorflow::shape_inference::InferenceContext* c,
                                                 tensorflow::shape_inference::ShapeHandle shape) {
  if (!c->RankKnown(shape)) return {};
  std::vector<int64_t> dims;
  for (int d = 0; d < c->Rank(shape); ++d) dims.push_back(c->Value(c->Dim(shape, d)));
  return tensorflow::PartialTensorShape(dims);
}

// A function that gets the shapes of inputs.
inline auto KnownShapes(tensorflow::shape_inference::InferenceContext* c) {
  return [c](int input, const char*, tensorflow::PartialTensorShape* shape) {
    *shape = KnownShape(c, c->input(input));
    return absl::OkStatus();
  };
}

}  // namespace tf_ti

#endif  // TF_TI_CC_OPS_KNOWN_SHAPE_H_
