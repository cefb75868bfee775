// tamis: the command line. One file per command; this one parses and dispatches.
#include <fmt/core.h>

#include <cstdio>
#include <new>
#include <stdexcept>
#include <system_error>

#include "cli.h"

namespace tamis::cli {

Exit exit_code(Code code) {
  switch (code) {
    case Code::kOk:
      return kDone;
    case Code::kUnsupported:
      return kUnsupportedExit;
    case Code::kIoError:
    case Code::kDeviceError:
      return kFailed;
    default:
      return kRefused;
  }
}

Json error_object(const Status& status) {
  Json object{{"error", code_name(status.code())}, {"message", status.message()}};
  const Where& where = status.where();
  if (where.request) object["request"] = *where.request;
  if (where.row) object["row"] = *where.row;
  if (where.page) object["page"] = *where.page;
  if (where.value) object["value"] = *where.value;
  if (where.limit) object["limit"] = *where.limit;
  return object;
}

int fail(const Status& status) {
  std::fflush(stdout);
  // Names from a file may hold any bytes; the object must stay valid UTF-8.
  fmt::print(stderr, "{}\n", error_object(status).dump(-1, ' ', false, Json::error_handler_t::replace));
  return exit_code(status.code());
}

}  // namespace tamis::cli

int main(int argc, char** argv) {
  using namespace tamis::cli;
  CLI::App app{
      "Dynamic sparse attention: attention over lists of candidate keys.\n"
      "Exit codes: 0 done, 2 wrong usage, 3 refused input, 4 unsupported, 5 i/o or device error; on 3, 4 and "
      "5 "
      "the last line of stderr is a JSON object."};
  app.name("tamis");
  app.require_subcommand(1);
  int exit = kDone;
  add_run(app, &exit);
  add_explain(app, &exit);
  add_quantize(app, &exit);
  add_tiers(app, &exit);
  add_kernels(app, &exit);
  add_bench(app, &exit);
  add_compare(app, &exit);
  add_version(app, &exit);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? kDone : kUsage;
  } catch (const std::bad_alloc&) {
    return fail({tamis::Code::kCapacityExceeded, "out of memory"});
  } catch (const std::length_error&) {
    return fail({tamis::Code::kCapacityExceeded, "out of memory"});
  } catch (const std::system_error& error) {
    return fail({tamis::Code::kIoError, fmt::format("stdout: {}", error.code().message())});
  }
  // What was printed must have arrived before it counts as done.
  if (std::fflush(stdout) != 0 || std::ferror(stdout) != 0)
    return fail({tamis::Code::kIoError, "stdout: cannot write"});
  return exit;
}
