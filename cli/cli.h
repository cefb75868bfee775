// What the commands share: exit codes, the error object, and the registration of each command.
#pragma once

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "tamis/status.h"

namespace tamis::cli {

using Json = nlohmann::ordered_json;  // keys in the order they are written

// docs/semantics.md section 12.
enum Exit : int { kDone = 0, kUsage = 2, kRefused = 3, kUnsupportedExit = 4, kFailed = 5 };
Exit exit_code(Code code);

// Prints the error object as the last line of stderr and returns the exit code.
int fail(const Status& status);

// The human-readable half of an error, above the object.
Json error_object(const Status& status);

// Each adds one command; its callback stores the exit code in *exit.
void add_run(CLI::App& app, int* exit);
void add_explain(CLI::App& app, int* exit);
void add_bench(CLI::App& app, int* exit);
void add_compare(CLI::App& app, int* exit);
void add_quantize(CLI::App& app, int* exit);
void add_tiers(CLI::App& app, int* exit);
void add_kernels(CLI::App& app, int* exit);
void add_version(CLI::App& app, int* exit);

}  // namespace tamis::cli
