#include "cc/kernels/loops/executor/compiled_bodies.h"

#include <cstdlib>
#include <string_view>
#include <utility>

namespace tf_ti {

namespace {

// Returns false if the environment has TF_TI_PROGRAM=0.
bool MayCompile() {
  const char* const value = std::getenv("TF_TI_PROGRAM");
  return value == nullptr || std::string_view(value) != "0";
}

}  // namespace

CompiledBodies::CompiledBodies() : are_wanted_(MayCompile()) {}

bool CompiledBodies::FindWhole(const std::vector<char>& stays, WholeBody* whole) {
  const auto shape_of = [&](size_t p) -> const auto& { return whole->parameters[p]; };
  whole->body = Find([&](const CompiledBody& body) { return body.Fits(shape_of, stays); });
  if (whole->body == nullptr || whole->body->whole.empty()) return false;
  whole->run = std::make_unique<RegionRun>(whole->region());
  return true;
}

std::shared_ptr<const CompiledBody> CompiledBodies::Add(CompiledBody body) {
  body.times = std::make_shared<UnitTimes>(body.units.size());
  auto added = std::make_shared<const CompiledBody>(std::move(body));
  const std::lock_guard<std::mutex> lock(mutex_);
  bodies_.push_front(added);
  if (bodies_.size() > kMost) bodies_.pop_back();
  return added;
}

std::shared_ptr<const CompiledBody> AdoptedBodies::Add(CompiledBody body) {
  auto added = shared_->Add(std::move(body));
  Adopt(added);
  return added;
}

}  // namespace tf_ti
