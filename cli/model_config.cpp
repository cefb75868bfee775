// Reading the shapes of attention off a Hugging Face config.json.
#include <fmt/format.h>

#include <cerrno>
#include <fstream>
#include <iterator>
#include <optional>
#include <system_error>

#include "kernels_model.h"

namespace tamis::cli {
namespace {

constexpr int64_t kMostBytes = 16 << 20;          // of a configuration
constexpr int64_t kMostHeads = 65536;             // heads and head sizes, as in case files
constexpr int64_t kMostTokens = 1 << 30;          // token numbers have 32 bits
constexpr int64_t kMostWidth = int64_t{1} << 32;  // hidden_size

Status bad_file(const std::string& path, const std::string& what) {
  return {Code::kIoError, fmt::format("{}: {}", path, what)};
}

Status invalid(const std::string& key, const std::string& what, Where where = {}) {
  return {Code::kInvalidArgument, fmt::format("{}: {}", key, what), where};
}

Result<Json> read_object(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return bad_file(path, std::generic_category().message(errno));
  std::string text;
  for (char piece[1 << 16]; file.good();) {
    file.read(piece, sizeof piece);
    text.append(piece, static_cast<size_t>(file.gcount()));
    if (std::ssize(text) > kMostBytes) return bad_file(path, "is longer than 16 MiB, no model configuration");
  }
  if (file.bad()) return bad_file(path, "cannot be read");
  Json object = Json::parse(text, nullptr, false);
  if (!object.is_object()) return bad_file(path, "is not one JSON object");
  return object;
}

// The integer under `key`, in 1 .. most; nothing where there is none or null.
Result<std::optional<int64_t>> number(const Json& config, const std::string& key, int64_t most) {
  const auto found = config.find(key);
  if (found == config.end() || found->is_null()) return std::optional<int64_t>();
  if (!found->is_number_integer())
    return invalid(key,
                   fmt::format("{} is not an integer",
                               found->dump(-1, ' ', false, Json::error_handler_t::replace).substr(0, 40)));
  // Numbers that only unsigned ones can hold would wrap.
  const bool wraps = found->is_number_unsigned() && found->get<uint64_t>() > static_cast<uint64_t>(most);
  if (wraps)
    return invalid(key, fmt::format("{} is above {}", found->get<uint64_t>(), most), {.limit = most + 1});
  const int64_t value = found->get<int64_t>();
  if (value < 1) return invalid(key, fmt::format("{} is below 1", value), {.value = value});
  return std::optional(value);
}

Status need(const Json& config, const std::string& key, int64_t most, int64_t* value) {
  const Result<std::optional<int64_t>> found = number(config, key, most);
  if (!found.ok()) return found.status();
  if (!*found) return invalid(key, "is missing");
  *value = **found;
  return {};
}

Status read_heads(const Json& config, ModelShape* m) {
  if (Status s = need(config, "num_attention_heads", kMostHeads, &m->q_heads); !s.ok()) return s;
  // Models without grouped queries leave it out.
  const auto kv_heads = number(config, "num_key_value_heads", kMostHeads);
  if (!kv_heads.ok()) return kv_heads.status();
  m->kv_heads = kv_heads->value_or(m->q_heads);
  if (m->q_heads % m->kv_heads != 0)
    return invalid("num_key_value_heads",
                   fmt::format("{} do not divide {} query heads", m->kv_heads, m->q_heads),
                   {.value = m->kv_heads});
  const auto head_dim = number(config, "head_dim", kMostHeads);
  if (!head_dim.ok()) return head_dim.status();
  if (*head_dim) {
    m->head_dim = **head_dim;
    return {};
  }
  int64_t width = 0;
  if (Status s = need(config, "hidden_size", kMostWidth, &width); !s.ok())
    return invalid("head_dim", "is missing, and so is a hidden_size to take it from: " + s.message());
  m->head_dim = width / m->q_heads;
  if (width % m->q_heads != 0 || m->head_dim > kMostHeads)
    return invalid("hidden_size", fmt::format("{} over {} heads gives no head size", width, m->q_heads),
                   {.value = width});
  return {};
}

// Newer files say `dtype`.
Status read_dtype(const Json& config, ModelShape* m) {
  const char* key = config.contains("torch_dtype") ? "torch_dtype" : "dtype";
  const auto found = config.find(key);
  if (found == config.end()) return invalid("torch_dtype", "is missing");
  const std::string name = found->is_string() ? found->get<std::string>() : "";
  for (const auto& [known, dtype] :
       {std::pair{"bfloat16", DType::kBF16}, {"float16", DType::kF16}, {"float32", DType::kF32}})
    if (name == known) {
      m->dtype = dtype;
      return {};
    }
  return invalid(key, fmt::format("'{}' is not one of bfloat16, float16, float32", name.substr(0, 40)));
}

Status read_window(const Json& config, ModelShape* m) {
  const auto window = number(config, "sliding_window", kMostTokens);
  if (!window.ok()) return window.status();
  // Some files state a window and then say that it is not in use.
  const auto used = config.find("use_sliding_window");
  m->window = used != config.end() && used->is_boolean() && !used->get<bool>() ? 0 : window->value_or(0);
  return {};
}

}  // namespace

Result<ModelShape> read_model(const std::string& path) {
  const Result<Json> file = read_object(path);
  if (!file.ok()) return file.status();
  // Models that also see or hear keep the language model's numbers one level down.
  const bool nested = !file->contains("num_attention_heads") && file->contains("text_config") &&
                      (*file)["text_config"].is_object();
  Json config = nested ? (*file)["text_config"] : *file;
  for (const char* key : {"torch_dtype", "dtype"})
    if (nested && !config.contains(key) && file->contains(key)) config[key] = (*file)[key];
  ModelShape m{};
  if (Status s = read_heads(config, &m); !s.ok()) return s;
  if (Status s = read_dtype(config, &m); !s.ok()) return s;
  if (Status s = read_window(config, &m); !s.ok()) return s;
  if (Status s = need(config, "max_position_embeddings", kMostTokens, &m.context); !s.ok()) return s;
  return m;
}

}  // namespace tamis::cli
