#include "cc/compute/program/view.h"

#include <algorithm>
#include <utility>

namespace tf_ti {

View View::Whole(int block, ElementType type, Dims dims) {
  View view;
  view.block = block;
  view.type = type;
  view.strides.resize(dims.size());
  int64_t stride = SizeOf(type);
  for (int d = static_cast<int>(dims.size()) - 1; d >= 0; --d) {
    view.strides[d] = stride;
    stride *= dims[d];
  }
  view.dims = std::move(dims);
  return view;
}

bool View::IsContiguous() const {
  int64_t stride = SizeOf(type);
  for (int d = rank() - 1; d >= 0; --d) {
    if (dims[d] != 1 && strides[d] != stride) return false;
    stride *= dims[d];
  }
  return true;
}

View View::BroadcastTo(const Dims& to) const {
  View view = *this;
  const size_t added = to.size() - dims.size();
  view.dims.insert(view.dims.begin(), added, 1);
  view.strides.insert(view.strides.begin(), added, 0);
  for (size_t d = 0; d < to.size(); ++d) {
    if (view.dims[d] == 1) view.strides[d] = 0;
    view.dims[d] = to[d];
  }
  return view;
}

View View::Transpose(const std::vector<int>& order) const {
  View view = *this;
  for (size_t d = 0; d < order.size(); ++d) {
    view.dims[d] = dims[order[d]];
    view.strides[d] = strides[order[d]];
  }
  return view;
}

View View::Slice(int dim, int64_t begin, int64_t size, int64_t step) const {
  View view = *this;
  view.offset += begin * strides[dim];
  view.dims[dim] = size;
  view.strides[dim] *= step;
  return view;
}

View View::WithDim(int at) const {
  View view = *this;
  view.dims.insert(view.dims.begin() + at, 1);
  view.strides.insert(view.strides.begin() + at, 0);
  return view;
}

View View::WithoutDim(int dim) const {
  View view = *this;
  view.dims.erase(view.dims.begin() + dim);
  view.strides.erase(view.strides.begin() + dim);
  return view;
}

std::optional<View> View::Merged(int first, int count) const {
  if (count == 0) return WithDim(first);
  View merged = *this;
  for (int dim = first + count - 2; dim >= first; --dim) {
    const int64_t size = merged.dims[dim], inner = merged.dims[dim + 1];
    if (inner == 1) {
      merged.strides[dim + 1] = merged.strides[dim];
    } else if (size != 1 && merged.strides[dim] != inner * merged.strides[dim + 1]) {
      return std::nullopt;
    }
    merged.dims[dim + 1] = size * inner;
    merged = merged.WithoutDim(dim);
  }
  return merged;
}

View View::Reshape(Dims to) const {
  View view = Whole(block, type, std::move(to));
  view.offset = offset;
  view.moves = moves;
  return view;
}

View View::Moving(const Move& move) const {
  View view = *this;
  view.moves.push_back(move);
  return view;
}

std::optional<Dims> BroadcastDims(const Dims& a, const Dims& b) {
  const size_t rank = std::max(a.size(), b.size());
  Dims dims(rank);
  for (size_t d = 0; d < rank; ++d) {
    const int64_t x = d < rank - a.size() ? 1 : a[d - (rank - a.size())];
    const int64_t y = d < rank - b.size() ? 1 : b[d - (rank - b.size())];
    if (x != y && x != 1 && y != 1) return std::nullopt;
    dims[d] = x == 1 ? y : x;
  }
  return dims;
}

}  // namespace tf_ti
