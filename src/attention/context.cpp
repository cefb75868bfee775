#include "core/checks.h"
#include "core/pool.h"
#include "kernels/cpu/isa.h"
#include "tamis/attention.h"

namespace tamis {

Context::Context(int threads) : isa_(cpu::best_isa().name) {
  if (threads < 1) threads = static_cast<int>(std::thread::hardware_concurrency());
  constexpr int most = 1024;
  pool_ = std::make_unique<Pool>(threads < 1 ? 1 : threads > most ? most : threads);
}

Context::~Context() = default;
Context::Context(Context&&) noexcept = default;
Context& Context::operator=(Context&&) noexcept = default;

int Context::threads() const { return pool_->threads(); }

Status Context::use_isa(const std::string& name) {
  if (cpu::find_isa(name.c_str()) == nullptr) {
    std::string have;
    for (const std::string& isa : cpu_isas()) have += " " + isa;
    return {Code::kUnsupported, text("isa: '", name, "' is not available here; nearest:", have)};
  }
  isa_ = name;
  return {};
}

std::vector<std::string> cpu_isas() {
  std::vector<std::string> names;
  for (const cpu::IsaEntry& entry : cpu::instruction_sets())
    if (entry.supported()) names.push_back(entry.isa->name);
  return names;
}

}  // namespace tamis
