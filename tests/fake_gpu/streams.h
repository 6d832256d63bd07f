// The streams of a GPU that is not there. What is enqueued runs later, on a thread of its own: of
// the streams that have something to do, any may be next, and there are pauses at random.
#ifndef TF_TI_TESTS_FAKE_GPU_STREAMS_H_
#define TF_TI_TESTS_FAKE_GPU_STREAMS_H_

#include <cstdint>
#include <functional>
#include <memory>

// How far streams have come that an event was recorded on.
struct FakeEvent {
  int64_t recorded = 0;
  int64_t reached = 0;
};
using FakeEventPointer = std::shared_ptr<FakeEvent>;

struct SP_Stream_st;

namespace fake_gpu {

SP_Stream_st* NewStream();
// The one on which TensorFlow's kernels work: the first one that another has followed. TensorFlow's
// first copy to the device does, which waits for what had its memory before.
SP_Stream_st* ComputeStream();

void Enqueue(SP_Stream_st* stream, std::function<void()> work);
void Record(SP_Stream_st* stream, const FakeEventPointer& event);
// The stream goes on when all that was recorded by now has been reached.
void MakeWait(SP_Stream_st* stream, const FakeEventPointer& event);
// The one goes on when the other has done all that it has by now.
void MakeFollow(SP_Stream_st* stream, SP_Stream_st* other);

bool IsReached(const FakeEventPointer& event);
// Both make the host wait, and are counted.
void Block(const FakeEventPointer& event);
void Block(SP_Stream_st* stream);

}  // namespace fake_gpu

#endif  // TF_TI_TESTS_FAKE_GPU_STREAMS_H_
