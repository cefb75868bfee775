// Reading the shapes of attention off a Hugging Face config.json.
#include <fmt/format.h>

#include <cerrno>
#include <fstream>
#include <iterator>
#include <optional>
#include <system_error>

#include "io/json_text.h"
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
  Json object = io::parse_json(text);
  if (!object.is_object()) return bad_file(path, "is not one JSON object");
  return object;
}

// The object that holds the language model's numbers: the file's own, or its text_config.
struct Config {
  const Json& numbers;
  const Json* beside;  // of text_config: the file's own object

  // Null counts as missing.
  const Json* find(const std::string& key) const { return find(numbers, key); }
  static const Json* find(const Json& object, const std::string& key) {
    const auto found = object.find(key);
    return found == object.end() || found->is_null() ? nullptr : &*found;
  }
  Status missing(const std::string& key) const {
    return invalid(key, beside != nullptr ? "is missing in text_config" : "is missing");
  }
};

std::string value_text(const Json& value) {
  return value.dump(-1, ' ', false, Json::error_handler_t::replace).substr(0, 40);
}

// The integer under `key`, in least .. most; nothing where there is none or null.
Result<std::optional<int64_t>> number(const Config& config, const std::string& key, int64_t most,
                                      int64_t least = 1) {
  const Json* found = config.find(key);
  if (found == nullptr) return std::optional<int64_t>();
  if (!found->is_number_integer()) return invalid(key, value_text(*found) + " is not an integer");
  // Numbers that only unsigned ones can hold would wrap.
  const bool wraps = found->is_number_unsigned() && found->get<uint64_t>() > static_cast<uint64_t>(most);
  if (wraps)
    return invalid(key, fmt::format("{} is above {}", found->get<uint64_t>(), most), {.limit = most + 1});
  const int64_t value = found->get<int64_t>();
  if (value < least) return invalid(key, fmt::format("{} is below {}", value, least), {.value = value});
  return std::optional(value);
}

Status need(const Config& config, const std::string& key, int64_t most, int64_t* value) {
  const Result<std::optional<int64_t>> found = number(config, key, most);
  if (!found.ok()) return found.status();
  if (!*found) return config.missing(key);
  *value = **found;
  return {};
}

// Heads that one shape cannot stand for.
Status check_kind(const Config& config) {
  if (config.find("kv_lora_rank") != nullptr)
    return {
        Code::kUnsupported,
        "kv_lora_rank: multi-head latent attention, whose keys and values are not hidden_size over heads; "
        "nearest: models without kv_lora_rank"};
  for (const auto& [key, value] : config.numbers.items())
    if (!value.is_null() && key.ends_with("_per_layer") && key.find("head") != key.npos)
      return {Code::kUnsupported,
              fmt::format("{}: heads that differ from layer to layer; nearest: one number for all layers",
                          key.substr(0, 80))};
  return {};
}

Status read_heads(const Config& config, ModelShape* m) {
  if (Status s = need(config, "num_attention_heads", kMostHeads, &m->q_heads); !s.ok()) return s;
  // Models without grouped queries leave it out.
  const char* key = config.find("num_key_value_heads") == nullptr && config.find("num_kv_heads") != nullptr
                        ? "num_kv_heads"
                        : "num_key_value_heads";
  const auto kv_heads = number(config, key, kMostHeads);
  if (!kv_heads.ok()) return kv_heads.status();
  m->kv_heads = kv_heads->value_or(m->q_heads);
  if (m->q_heads % m->kv_heads != 0)
    return invalid(key, fmt::format("{} do not divide {} query heads", m->kv_heads, m->q_heads),
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

// Newer files say `dtype`. What text_config says goes before what stands beside it.
Status read_dtype(const Config& config, ModelShape* m) {
  const Json* found = nullptr;
  const char* key = "torch_dtype";
  for (const Json* object : {&config.numbers, config.beside})
    for (const char* name : {"torch_dtype", "dtype"})
      if (object != nullptr && found == nullptr && (found = Config::find(*object, name)) != nullptr)
        key = name;
  if (found == nullptr)
    return invalid(key, config.beside != nullptr ? "is missing in text_config, and beside it" : "is missing");
  std::string name = found->is_string() ? found->get<std::string>() : value_text(*found);
  if (name.starts_with("torch.")) name.erase(0, 6);
  for (const auto& [known, dtype] :
       {std::pair{"bfloat16", DType::kBF16}, {"float16", DType::kF16}, {"float32", DType::kF32}})
    if (name == known) {
      m->dtype = dtype;
      return {};
    }
  return invalid(key, fmt::format("'{}' is not one of bfloat16, float16, float32", name.substr(0, 40)));
}

// Which key says that only some of the layers have the window; empty: none does. `any`: whether some have it.
std::string partial_window(const Config& config, bool* any) {
  *any = true;
  if (const Json* types = config.find("layer_types"); types != nullptr && types->is_array()) {
    size_t windows = 0;
    for (const Json& type : *types) windows += type == "sliding_attention";
    *any = windows > 0;
    return windows < types->size() ? "layer_types" : "";
  }
  const auto counts = [](const Json* value, int64_t from) {
    return value != nullptr && (value->is_string() || (value->is_number_integer() && *value >= from));
  };
  if (counts(config.find("sliding_window_pattern"), 2)) return "sliding_window_pattern";
  return counts(config.find("max_window_layers"), 1) ? "max_window_layers" : "";
}

Status read_window(const Config& config, ModelShape* m) {
  // Some files state a window and then say that it is not in use.
  const Json* used = config.find("use_sliding_window");
  if (used != nullptr && used->is_boolean() && !used->get<bool>()) return {};
  const auto window = number(config, "sliding_window", kMostTokens, 0);
  if (!window.ok()) return window.status();
  if (window->value_or(0) == 0) return {};
  bool any = true;
  const std::string partial = partial_window(config, &any);
  if (!any) return {};
  m->window = **window;
  if (!partial.empty())
    m->note = fmt::format("only some layers have the window ({}); planned is one that has", partial);
  return {};
}

}  // namespace

Result<ModelShape> read_model(const std::string& path) {
  const Result<Json> file = read_object(path);
  if (!file.ok()) return file.status();
  // Models that also see or hear keep the language model's numbers one level down.
  const Json* inner = Config::find(*file, "text_config");
  const bool nested =
      Config::find(*file, "num_attention_heads") == nullptr && inner != nullptr && inner->is_object();
  const Config config{nested ? *inner : *file, nested ? &*file : nullptr};
  ModelShape m{};
  if (Status s = check_kind(config); !s.ok()) return s;
  if (Status s = read_heads(config, &m); !s.ok()) return s;
  if (Status s = read_dtype(config, &m); !s.ok()) return s;
  if (Status s = read_window(config, &m); !s.ok()) return s;
  if (Status s = need(config, "max_position_embeddings", kMostTokens, &m.context); !s.ok()) return s;
  return m;
}

}  // namespace tamis::cli
