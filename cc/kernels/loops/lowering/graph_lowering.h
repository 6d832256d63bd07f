// Bodies of loops as steps of programs, before an iteration has run.
#ifndef TF_TI_CC_KERNELS_LOOPS_LOWERING_GRAPH_LOWERING_H_
#define TF_TI_CC_KERNELS_LOOPS_LOWERING_GRAPH_LOWERING_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "cc/compute/program/steps.h"
#include "tensorflow/core/framework/graph.pb.h"

namespace tf_ti {

// A body whose parameters are operations of type Placeholder, with their types and shapes.
struct BodyGraph {
  tensorflow::GraphDef graph;
  std::vector<std::string> parameters;  // the names of their operations
  std::vector<char> stays;              // by parameter: true if all iterations have the same
  std::vector<std::string> results;     // the names of tensors
};

struct LoweredGraph {
  struct Kernel {
    int node;
    std::string reason;
  };

  // Outputs are the results. Origins are positions among the graph's operations.
  ProgramSteps steps;
  std::vector<int> inputs;  // of the program: the parameter of each; -1 for kernels' results
  bool may_fail = false;    // one more output, a bool, tells whether an iteration failed
  // The operations that kernels run, as far as their inputs are known. Where there are any, the
  // program is not complete.
  std::vector<Kernel> kernels;
};

// The graph tells the shapes of all tensors, as `_output_shapes`. An error names the missing shape
// or type.
absl::StatusOr<LoweredGraph> LowerGraph(const BodyGraph& body);

}  // namespace tf_ti

#endif  // TF_TI_CC_KERNELS_LOOPS_LOWERING_GRAPH_LOWERING_H_
