// SPDX-License-Identifier: Apache-2.0
#include "launch/start_plan.h"

#include <filesystem>
#include <system_error>
#include "base/check.h"
#include "launch/core_binding.h"

namespace sherd::launch {
namespace {

StartFailure make_log_folder(const LaunchOptions& options) {
  if (options.output != RankOutput::kFiles) {
    return {};
  }
  std::error_code error;
  std::filesystem::create_directories(options.log_dir, error);
  if (error) {
    return {
        1,
        str("cannot make the folder of the logs, '", options.log_dir,
            "': ", error.message())};
  }
  return {};
}

}  // namespace

StartPlan plan_start(const LaunchOptions& options, int ranks) {
  StartPlan plan;
  const auto path = find_variable(options.environment, "PATH");
  const ProgramLookup program = find_program(
      options.command.front(), path.value_or("/usr/local/bin:/usr/bin:/bin"));
  if (program.path.empty()) {
    plan.failure = program.failure;
    return plan;
  }
  plan.path = program.path;
  plan.failure = make_log_folder(options);
  const std::vector<CpuCore> cores = usable_cores();
  plan.cores = static_cast<int>(cores.size());
  if (options.bind_cores) {
    plan.division = divide_cores(cores, ranks);
  }
  return plan;
}

SupervisedProcessSpec rank_process_spec(
    const LaunchOptions& options,
    const StartPlan& plan,
    const RankVariables& place,
    int slot,
    const std::string& name) {
  SupervisedProcessSpec setup;
  setup.slot = slot;
  setup.name = name;
  setup.process.path = plan.path;
  setup.process.command = options.command;
  setup.process.environment = variables_of_rank(options.environment, place);
  const auto index = static_cast<std::size_t>(slot);
  if (index < plan.division.size()) {
    setup.process.cores = plan.division[index];
  }
  if (options.output == RankOutput::kPrefixed) {
    setup.prefix = "[" + name + "] ";
  }
  return setup;
}

}  // namespace sherd::launch
