// The shape functions of ops.
#ifndef TF_TI_CC_OPS_SHAPE_FUNCTION_H_
#define TF_TI_CC_OPS_SHAPE_FUNCTION_H_

#include "cc/status.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace tf_ti {

// Makes memory that runs out in a shape function an error. TensorFlow calls the function with the
// lock of a graph: an exception would leave the graph locked for good.
inline tensorflow::OpShapeInferenceFn ShapeFunction(tensorflow::OpShapeInferenceFn function) {
  return [function](tensorflow::shape_inference::InferenceContext* c) {
    return CatchOutOfMemory("a shape function", [&] { return function(c); });
  };
}

}  // namespace tf_ti

#endif  // TF_TI_CC_OPS_SHAPE_FUNCTION_H_
