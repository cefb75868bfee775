// tamis kernels --model: what each backend would run for the shapes of a model, without its weights.
#pragma once

#include <string>
#include <vector>

#include "cli.h"
#include "tamis/device.h"
#include "tamis/status.h"
#include "tamis/tensor.h"

namespace tamis::cli {

// What attention needs of a Hugging Face config.json.
struct ModelShape {
  int64_t q_heads, kv_heads, head_dim;
  int64_t window;   // tokens; 0: none
  int64_t context;  // tokens
  DType dtype;
  std::string note{};  // what these numbers leave out; empty: nothing
};

// io_error where the file cannot be read or is no JSON object; invalid_argument, naming the key, where a
// number is missing or cannot be meant; unsupported where heads are of another kind, or differ by layer.
Result<ModelShape> read_model(const std::string& path);

// A backend's answer to one decode step.
struct ModelPlan {
  int64_t unit, index_heads;
  Backend backend;
  Status refused{};  // why there is no plan
  std::string kernel{}, path{}, load{}, reason{};
  int64_t block = 0, columns = 0, column_tiles = 0;  // 0: has no meaning there
  int64_t workspace_bytes = 0;                       // most that a step needs
};

// One decode step of the model for each unit and owner of the lists, on each backend.
std::vector<ModelPlan> plan_model(const ModelShape& model);

// The command: 0 or an exit code.
int print_model(const std::string& path, bool json);

}  // namespace tamis::cli
