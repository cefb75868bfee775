// Writing safetensors files: the header from the views, then their elements, through a file beside the target
// that takes its name only when it is whole.

#include <algorithm>
#include <cstring>
#include <new>
#include <nlohmann/json.hpp>
#include <numeric>
#include <set>
#include <string_view>
#include <vector>

#include "core/checks.h"
#include "io/header.h"
#include "io/output.h"
#include "io/text.h"

namespace tamis::io {
namespace {

using Json = nlohmann::json;

// A strided view, written dense. Trailing axes that already lie dense go out in one piece.
Status put_tensor(Output& out, const TensorView& view) {
  if (view.elements() == 0) return {};
  const int64_t size = dtype_bytes(view.dtype);
  int64_t run = 1;
  int outer = view.rank;
  while (outer > 0 && (view.shape[outer - 1] == 1 || view.stride[outer - 1] == run)) {
    run *= view.shape[--outer];
  }
  const auto* base = static_cast<const std::byte*>(view.data);
  std::array<int64_t, kMaxRank> at{};
  for (int64_t offset = 0;;) {
    TAMIS_RETURN_IF_ERROR(out.put(base + offset * size, run * size));
    int axis = outer - 1;
    for (; axis >= 0 && ++at[axis] == view.shape[axis]; --axis) {
      offset -= (view.shape[axis] - 1) * view.stride[axis];
      at[axis] = 0;
    }
    if (axis < 0) return {};
    offset += view.stride[axis];
  }
}

Status check_tensors(const NamedTensors& tensors) {
  std::set<std::string_view> names{"__metadata__"};
  for (const auto& [name, view] : tensors) {
    if (!names.insert(name).second) return invalid(in_quotes(name).c_str(), "the name is taken");
    if (!view.present() || view.rank > kMaxRank)
      return invalid(in_quotes(name).c_str(), "there is no such tensor");
    const std::optional<int64_t> bytes = byte_count(view.rank, view.shape, view.dtype);
    if (!bytes) return invalid(in_quotes(name).c_str(), "its extents are negative or too large");
    if (*bytes > 0 && view.data == nullptr) return invalid(in_quotes(name).c_str(), "there is no data");
  }
  return {};
}

// Tensors are placed by falling element size, in the caller's order within a size. The data starts at a
// multiple of 8, so every tensor lies at a multiple of its element size: readers that map files need that.
std::vector<size_t> order_of(const NamedTensors& tensors) {
  std::vector<size_t> order(tensors.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    return dtype_bytes(tensors[a].second.dtype) > dtype_bytes(tensors[b].second.dtype);
  });
  return order;
}

// The JSON text, with spaces up to a multiple of 8. Throws Json::exception on text that is not UTF-8.
Result<std::string> header_text(const NamedTensors& tensors, const std::vector<size_t>& order,
                                const Metadata& metadata) {
  std::string text = "{";
  const auto add = [&](const std::string& name, const std::string& value) {
    if (text.size() > 1) text += ',';
    text += Json(name).dump() + ':' + value;
  };
  if (!metadata.empty()) add("__metadata__", Json(metadata).dump());
  int64_t begin = 0;
  for (size_t i : order) {
    const TensorView& view = tensors[i].second;
    int64_t end = 0;
    if (__builtin_add_overflow(begin, *byte_count(view.rank, view.shape, view.dtype), &end)) {
      return invalid(in_quotes(tensors[i].first).c_str(), "the tensors are too large together");
    }
    std::string value = R"({"dtype":")";
    value += dtype_name(view.dtype);
    value += R"(","shape":[)";
    for (int axis = 0; axis < view.rank; ++axis) {
      if (axis > 0) value += ',';
      value += std::to_string(view.shape[axis]);
    }
    value += R"(],"data_offsets":[)" + std::to_string(begin) + ',' + std::to_string(end) + "]}";
    add(tensors[i].first, value);
    begin = end;
  }
  text += '}';
  text.append((8 - text.size() % 8) % 8, ' ');
  return text;
}

}  // namespace

Status write_tensors(const std::string& path, const NamedTensors& tensors, const Metadata& metadata) try {
  TAMIS_RETURN_IF_ERROR(check_tensors(tensors));
  const std::vector<size_t> order = order_of(tensors);
  const Result<std::string> text = header_text(tensors, order, metadata);
  if (!text.ok()) return text.status();
  Output out;
  TAMIS_RETURN_IF_ERROR(out.open(path));
  const uint64_t length = text->size();
  TAMIS_RETURN_IF_ERROR(out.put(&length, sizeof length));
  TAMIS_RETURN_IF_ERROR(out.put(text->data(), static_cast<int64_t>(length)));
  for (size_t i : order) {
    TAMIS_RETURN_IF_ERROR(put_tensor(out, tensors[i].second));
  }
  return out.commit();
} catch (const Json::exception&) {
  return invalid("metadata", "a key, a value or a tensor's name is not UTF-8");
} catch (const std::bad_alloc&) {
  return {Code::kIoError, "no memory to write a file"};
}

Status write_text(const std::string& path, std::string_view text) try {
  Output out;
  TAMIS_RETURN_IF_ERROR(out.open(path));
  TAMIS_RETURN_IF_ERROR(out.put(text.data(), static_cast<int64_t>(text.size())));
  return out.commit();
} catch (const std::bad_alloc&) {
  return {Code::kIoError, "no memory to write a file"};
}

}  // namespace tamis::io
