// What the library chose for the processor that it runs on.
#ifndef TF_TI_CC_KERNELS_PROCESSOR_H_
#define TF_TI_CC_KERNELS_PROCESSOR_H_

// A line for each choice, for people to read.
extern "C" const char* TfTiProcessor();

#endif  // TF_TI_CC_KERNELS_PROCESSOR_H_
