#include "cc/kernels/loops/executor/units.h"

#include <algorithm>
#include <vector>

namespace tf_ti {

namespace {

// Sets a result's element of a list that is as long as the last result needs.
void SetElement(int result, int element, std::vector<int>* elements) {
  const auto size = static_cast<size_t>(result) + 1;
  if (elements->size() < size) elements->resize(size, -1);
  (*elements)[result] = element;
}

class UnitFinder {
 public:
  UnitFinder(const Schedule& schedule, const CompiledBody& body)
      : schedule_(schedule),
        body_(body),
        unit_of_(schedule.steps.size()),
        step_of_(schedule.values.size()) {}

  BodyUnits Find() {
    BodyUnits found;
    FindStepsOfValues();
    for (size_t u = 0; u < body_.units.size(); ++u) {
      EachStep(body_.units[u], [&](int s) { unit_of_[s] = static_cast<int>(u); });
      found.have_programs |= DependsOnShapes(body_.units[u]);
      found.units.push_back(UnitAt(u));
    }
    FindMakers(&found);
    FindPassedOn(&found);
    return found;
  }

 private:
  template <typename Use>
  void EachStep(const CompiledBody::Unit& unit, const Use& use) const {
    if (unit.region < 0) return use(unit.step);
    for (const int s : body_.regions[unit.region].steps) use(s);
  }

  void FindStepsOfValues() {
    for (size_t s = 0; s < schedule_.steps.size(); ++s) {
      const Step& step = schedule_.steps[s];
      for (int i = 0; i < step.num_outputs; ++i) {
        step_of_[step.first_value + i] = static_cast<int>(s);
      }
    }
  }

  // All steps up to the unit have their units.
  BodyUnits::Unit UnitAt(size_t u) const {
    const CompiledBody::Unit& unit = body_.units[u];
    std::vector<char> is_after(u + 1, false), is_read(schedule_.parameters.size(), false);
    EachStep(unit, [&](int s) {
      for (const int before : schedule_.steps[s].after) is_after[unit_of_[before]] = true;
    });
    EachRead(schedule_, body_, unit, [&](const Source& source) {
      if (source.kind == Source::kParameter) is_read[source.index] = true;
      if (source.kind == Source::kValue) is_after[unit_of_[step_of_[source.index]]] = true;
    });
    BodyUnits::Unit made;
    made.time = body_.times->Of(u);
    for (size_t before = 0; before < u; ++before) {
      if (is_after[before]) made.after.push_back(static_cast<int>(before));
    }
    for (size_t p = 0; p < is_read.size(); ++p) {
      if (is_read[p]) made.parameters.push_back(static_cast<int>(p));
    }
    return made;
  }

  void FindMakers(BodyUnits* found) const {
    for (size_t v = 0; v < schedule_.values.size(); ++v) {
      for (const int result : schedule_.values[v].results) {
        SetElement(result, unit_of_[step_of_[v]], &found->makers);
      }
    }
  }

  void FindPassedOn(BodyUnits* found) const {
    for (size_t p = 0; p < schedule_.parameters.size(); ++p) {
      for (const int result : schedule_.parameters[p].results) {
        SetElement(result, static_cast<int>(p), &found->passed_on);
      }
    }
  }

  const Schedule& schedule_;
  const CompiledBody& body_;
  std::vector<int> unit_of_;  // each step
  std::vector<int> step_of_;  // each value
};

}  // namespace

BodyUnits UnitsOf(const Schedule& schedule, const CompiledBody& body) {
  return UnitFinder(schedule, body).Find();
}

}  // namespace tf_ti
