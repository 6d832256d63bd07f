// The lanes of loops, told to Python before anything runs.
#ifndef TF_TI_CC_KERNELS_LOOPS_LOWERING_TOLD_LANES_H_
#define TF_TI_CC_KERNELS_LOOPS_LOWERING_TOLD_LANES_H_

#include <cstdint>

namespace tf_ti {

// Finds the lanes of a loop whose body is a serialized GraphDef.
//
// `loop` has a line for each of these words, with values behind it:
//   parameters   the names of the operations that are the body's parameters
//   stays        1 for each parameter that is the same in all iterations, or 0
//   results      the names of the tensors that are the body's results
//   inputs       the array of each parameter, see LoopPlan
//   outputs      the array of each result
//   kept         1 for each result that the loop writes, or keeps for the next iteration, or 0
//   added        1 for each result that the loop adds up, or 0
//   whole        the arrays of which an iteration needs all
//   arrays       the number of arrays
//   iterations   the most iterations; a large number where that is not known
//   has_condition   1 if a condition may end the loop, or 0
//   threads      the number of threads
//
// Returns lines of text, valid until the thread's next call. Where kernels run operations: "kernel
// OPERATION REASON" for each. Else "lanes COUNT GROUPS ARRAY STRIDE" for each array that has lanes,
// STRIDE bytes apart; where there are none, "obstacle KIND OPERATION ARRAY STRIDE" for each
// obstacle. A line "refused REASON" tells why the graph does not say enough.
extern "C" const char* TfTiLanes(const char* graph, int64_t size, const char* loop);

}  // namespace tf_ti

#endif  // TF_TI_CC_KERNELS_LOOPS_LOWERING_TOLD_LANES_H_
