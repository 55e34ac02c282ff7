// SPDX-License-Identifier: Apache-2.0
#include <unistd.h>
#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <map>
#include <memory>
#include <sstream>
#include <string>
#include <vector>
#include <CLI/CLI.hpp>
#include <sherd/base/error.h>
#include <sherd/launch/launch.h>
#include "base/text.h"
#include "coordinator_flags.h"
#include "exec_program.h"
#include "option_adder.h"
#include "subcommand.h"

namespace sherd::tools {
namespace {

using launch::LaunchOptions;
using launch::RankOutput;

constexpr const char* kRunExplanation =
    "Every rank gets RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE,\n"
    "MASTER_ADDR and MASTER_PORT, as from torchrun. When one rank fails, the\n"
    "others are ended and the report names the one that failed first. Ctrl-C\n"
    "is passed on to the ranks; a second one kills them.\n";

constexpr const char* kRunExamples =
    "Examples:\n"
    "  sherd run -n 4 ./train --steps 100\n"
    "  sherd run -n 2 --log-dir logs -- python3 train.py --verbose\n"
    "  sherd run -n 2 --port 29500 ./train\n"
    "  sherd run --fault-tolerant --replicas 3 --samples-per-replica 8 "
    "./train\n"
    "\n"
    "Output: each line of a rank is shown after \"[rank 3] \", of a replica's\n"
    "after \"[r1.0] \". On a terminal rank 0 writes to it directly, so that "
    "its\n"
    "progress bar works.\n"
    "Exit status: 0 when all ranks succeed, else that of the first to fail\n"
    "(128 + signal if killed); 1 when output could not be written;\n"
    "127 program not found, 126 not executable,\n"
    "with --fault-tolerant 0 when the replica that ended last has succeeded,\n"
    "75 when all replicas were asked to leave before the run had ended;\n"
    "2 wrong usage.";

// For a timer that cannot be 0.
std::string check_positive_seconds(const std::string& text) {
  const bool is_zero =
      check_seconds(text).empty() && std::strtod(text.c_str(), nullptr) == 0;
  return is_zero ? "expected seconds above 0, found " + text
                 : check_seconds(text);
}

std::string check_count(const std::string& text) {
  return parse_number<std::int64_t>(text).value_or(0) > 0
      ? ""
      : "expected a number from 1 on, found " + text;
}

// A timer of replicas.
struct ReplicaTimeFlag {
  const char* name;
  const char* key;  // The key in SHERD_TIMEOUTS.
  const char* description;
};

constexpr std::array<ReplicaTimeFlag, 7> kReplicaTimeFlags = {{
    {"--leave-timeout", "leave",
     "A replica that was told to end, and has nothing to\n"
     "do, waits this long for the coordinator's decision;\n"
     "then it saves what it holds (a third of --grace)"},
    {"--connect-timeout", "connect",
     "A replica to which no connection was made in this\n"
     "time counts as lost; at most seven tenths of\n"
     "--join-timeout (0.7)"},
    {"--link-timeout", "link",
     "A connection counts as lost when sent bytes were not\n"
     "acknowledged for this long (5)"},
    {"--fetch-timeout", "fetch",
     "A replica that sends nothing of a state for this\n"
     "long is not waited for (5)"},
    {"--snapshot-timeout", "snapshot",
     "How long one may take to finish its step and copy\n"
     "its state for others (60)"},
    {"--siblings-timeout", "siblings",
     "How long the ranks of a replica wait for each other\n"
     "at the start (60)"},
    {"--linger-timeout", "linger",
     "How long a replica that has made the last step waits\n"
     "for others that lack it (60)"},
}};

// The command line's values, before they become LaunchOptions.
struct RunArguments {
  LaunchOptions launch;
  double grace_seconds = 30;
  double restart_window_seconds = 3600;
  bool no_secret = false;
  bool no_bind = false;
  bool no_prefix = false;
  bool no_rank0_tty = false;
  int ranks = 0;
  const CLI::Option* ranks_given = nullptr;
  std::string flight_folder;
  bool fault_tolerant = false;
  int ranks_per_replica = 1;
  launch::ReplicaOptions replicas;
  const CLI::Option* replicas_given = nullptr;
  bool recovers = false;
  // Options passed on to the coordinator.
  std::vector<const CLI::Option*> passed_on;
  // The timers of replicas.
  std::map<std::string, const CLI::Option*> timeouts;
};

class RunFormatter : public CLI::Formatter {
 public:
  // Without what each option needs and excludes, which groups and errors say.
  std::string make_option_opts(const CLI::Option* option) const override {
    return option->get_type_size() == 0 ? "" : " " + option->get_type_name();
  }
  std::string make_usage(
      const CLI::App* /*app*/, std::string name) const override {
    return "Usage: " + name +
        " -n N [OPTIONS] [--] PROGRAM [ARGUMENTS...]\n"
        "       " +
        name +
        " --fault-tolerant --replicas R [OPTIONS] [--] PROGRAM "
        "[ARGUMENTS...]\n\n" +
        kRunExplanation;
  }
};

// The value of SHERD_TIMEOUTS for the replicas, where later entries count. By default a replica
// that is told to end has most of the grace period to save its state.
std::string timeouts_of(const RunArguments& arguments) {
  std::ostringstream text;
  text << "leave=" << std::max(arguments.grace_seconds / 3, 0.1);
  const char* given = std::getenv("SHERD_TIMEOUTS");
  if (given != nullptr && *given != '\0') {
    text << "," << given;
  }
  for (const auto& [key, option] : arguments.timeouts) {
    if (option->count() > 0) {
      text << "," << key << "=" << option->results().back();
    }
  }
  return text.str();
}

// The value of `key` in a text such as SHERD_TIMEOUTS, or what counts without one.
double seconds_in(
    const std::string& timeouts, const std::string& key, double otherwise) {
  const std::string text = "," + timeouts;
  const std::string name = "," + key + "=";
  const auto last = text.rfind(name);
  return last == std::string::npos
      ? otherwise
      : std::strtod(text.c_str() + last + name.size(), nullptr);
}

// Members that cannot connect must report it before the coordinator counts who has joined.
void check_connect_timeout(
    const RunArguments& arguments, const std::string& timeouts) {
  if (!arguments.replicas.coordinator.empty()) {
    return;  // It has a --join-timeout of its own.
  }
  const double connect = seconds_in(timeouts, "connect", 0.7);
  using Seconds = std::chrono::duration<double>;
  double join = Seconds(ft::CoordinateOptions().join_timeout).count();
  for (const CLI::Option* option : arguments.passed_on) {
    if (option->get_name() == "--join-timeout" && option->count() > 0) {
      join = option->as<double>();
    }
  }
  if (connect > 0.7 * join + 1e-9) {
    std::ostringstream text;
    text << "--connect-timeout: expected at most seven tenths of "
            "--join-timeout, "
         << 0.7 * join << " s, found " << connect;
    throw Error(text.str());
  }
}

// `make train` does not build it.
std::string coordinator_program() {
  const auto path = path_beside("sherd-coordinate");
  if (::access(path.c_str(), X_OK) != 0) {
    throw Error(
        "--fault-tolerant: expected the program '" + path +
        "', which 'make build' builds; found none");
  }
  return path;
}

void set_replicas(RunArguments& arguments) {
  LaunchOptions& options = arguments.launch;
  if (arguments.replicas_given->count() == 0) {
    throw Error("expected --replicas R with --fault-tolerant, found none");
  }
  options.ranks = arguments.ranks_per_replica;
  options.rank0_owns_stdout = false;
  options.replicas = arguments.replicas;
  options.replicas->makes_secret = !arguments.no_secret;
  options.replicas->timeouts = timeouts_of(arguments);
  check_connect_timeout(arguments, options.replicas->timeouts);
  options.replicas->restart_window =
      milliseconds_of(arguments.restart_window_seconds);
  auto& words = options.replicas->coordinator_arguments;
  for (const CLI::Option* option : arguments.passed_on) {
    if (option->count() > 0) {
      words.push_back(option->get_name());
      words.insert(
          words.end(), option->results().begin(), option->results().end());
    }
  }
  if (arguments.recovers) {
    words.emplace_back(kRecoverFlag);
  }
  if (arguments.replicas.coordinator.empty()) {
    options.replicas->coordinator_command = {coordinator_program()};
  }
}

int run(RunArguments arguments, const std::vector<std::string>& program) {
  LaunchOptions& options = arguments.launch;
  options.command = program;
  if (!arguments.flight_folder.empty()) {
    // Ranks inherit it.
    ::setenv("SHERD_FLIGHT_DIR", arguments.flight_folder.c_str(), 1);
  }
  for (char** variable = environ; *variable != nullptr; ++variable) {
    options.environment.emplace_back(*variable);
  }
  if (!options.log_dir.empty()) {
    options.output = RankOutput::kFiles;
  } else if (arguments.no_prefix) {
    options.output = RankOutput::kPlain;
  }
  options.rank0_owns_stdout = options.output != RankOutput::kFiles &&
      !arguments.no_rank0_tty && ::isatty(STDOUT_FILENO) == 1;
  options.stop_grace = milliseconds_of(arguments.grace_seconds);
  options.bind_cores = !arguments.no_bind;
  if (!arguments.fault_tolerant && arguments.ranks_given->count() == 0) {
    throw Error(
        "expected --ranks N, or --fault-tolerant with --replicas R, found "
        "neither");
  }
  options.ranks = arguments.ranks;
  if (arguments.fault_tolerant) {
    set_replicas(arguments);
  }
  return launch::run(options);
}

// Makes an option one of those that come with --fault-tolerant.
CLI::Option* with_replicas(CLI::App& run_app, CLI::Option* option) {
  return option->needs(run_app.get_option("--fault-tolerant"))
      ->group("With --fault-tolerant");
}

void add_replica_options(CLI::App& run_app, RunArguments& arguments) {
  launch::ReplicaOptions& replicas = arguments.replicas;
  run_app.add_flag(
      "--fault-tolerant", arguments.fault_tolerant,
      "Run replicas that are started again when they die,\n"
      "and a coordinator for them");
  const auto add = [&](const char* name, auto& value, const char* type,
                       const char* description) {
    return with_replicas(
        run_app, option_adder(&run_app)(name, value, type, description));
  };
  arguments.replicas_given =
      add("--replicas", replicas.replicas, "R", "Number of replicas")
          ->excludes(run_app.get_option("--ranks"));
  add("--ranks-per-replica", arguments.ranks_per_replica, "K",
      "Ranks of each replica (1)");
  add("--spares", replicas.spares, "N",
      "Additional replicas that wait until one is lost, and\n"
      "take its place");
  add("--max-restarts", replicas.restarts_max, "N",
      "How often one replica is started again within the\n"
      "time of --restart-window, before it is given up (30)");
  add("--restart-window", arguments.restart_window_seconds, "SECONDS",
      "That time; 0: as long as the job lasts (3600)")
      ->check(check_seconds);
  CLI::Option* elsewhere =
      add("--coordinator", replicas.coordinator, "HOST:PORT",
          "Use a coordinator that runs elsewhere");
  add("--replicas-min", replicas.replicas_min, "M",
      "No step is committed by fewer replicas (1)")
      ->excludes(elsewhere);
  add("--samples-per-replica", replicas.samples_per_replica, "S",
      "Samples of each replica in a step, a multiple of its\n"
      "ranks (K)")
      ->check(check_count)
      ->excludes(elsewhere);
  add("--global-batch", replicas.global_batch, "N",
      "Instead: samples of all replicas together in a step,\n"
      "also while some are missing")
      ->check(check_count)
      ->excludes(run_app.get_option("--samples-per-replica"))
      ->excludes(elsewhere);
  add("--status", replicas.status, "HOST:PORT",
      "Where the coordinator serves its status page, on\n"
      "this host (127.0.0.1 and a free port)")
      ->excludes(elsewhere);
  add("--run-dir", replicas.run_folder, "DIR",
      "Where the coordinator keeps its log; a run that\n"
      "began there continues")
      ->excludes(elsewhere);
  with_replicas(
      run_app,
      run_app.add_flag(kRecoverFlag, arguments.recovers, kRecoverDescription))
      ->excludes(elsewhere);
  add("--control", replicas.control, "PATH",
      "Make a socket for `sherd replica drain` and `admit`");
}

void add_secret_options(CLI::App& run_app, RunArguments& arguments) {
  CLI::Option* secret = with_replicas(
      run_app,
      option_adder(&run_app)(
          "--secret-file", arguments.replicas.secret_file, "FILE",
          "The secret that replicas and coordinator share\n"
          "(a new one, coordinator.secret in --run-dir)"));
  with_replicas(
      run_app,
      run_app.add_flag(
          "--no-secret", arguments.no_secret,
          "Without a secret: every process of this host may\n"
          "take part in the run and read its states"))
      ->excludes(secret);
}

// The coordinator's timers apply only if it is started here.
void add_timers(CLI::App& run_app, RunArguments& arguments) {
  const auto add = [&](const char* name, const std::string& description) {
    return run_app
        .add_option_function<double>(
            name, [](double /*its text is passed on*/) {}, description)
        ->type_name("SECONDS")
        ->needs(run_app.get_option("--fault-tolerant"))
        ->group("Timers, with --fault-tolerant");
  };
  for (const auto& flag : kReplicaTimeFlags) {
    arguments.timeouts[flag.key] =
        add(flag.name, flag.description)->check(check_positive_seconds);
  }
  for (const auto& flag : kCoordinatorTimeFlags) {
    arguments.passed_on.push_back(
        add(flag.name, description_of(flag))
            ->check(check_seconds)
            ->excludes(run_app.get_option("--coordinator")));
  }
}

}  // namespace

void add_run(
    CLI::App& app, const std::vector<std::string>& program, int& status) {
  auto arguments = std::make_shared<RunArguments>();
  CLI::App* run_app = app.add_subcommand(
      "run", "Start ranks of a program on this host and watch them");
  run_app->formatter(std::make_shared<RunFormatter>());
  run_app->footer(kRunExamples);
  const auto add = option_adder(run_app);
  arguments->ranks_given =
      add("-n,--ranks", arguments->ranks, "N", "Number of ranks");
  add_replica_options(*run_app, *arguments);
  add_secret_options(*run_app, *arguments);
  add_timers(*run_app, *arguments);
  add("--fake-hosts", arguments->launch.fake_hosts, "N",
      "For tests: let ranks behave as if they were on this\n"
      "many hosts, which share no memory");
  add("--port", arguments->launch.port, "PORT",
      "The port on which rank 0 listens (a free one)");
  add("--log-dir", arguments->launch.log_dir, "DIR",
      "Write the output of each rank to a file,\n"
      "DIR/rank-0.log and so on; logs of an earlier run in\n"
      "DIR are replaced");
  add("--flight-dir", arguments->flight_folder, "DIR",
      "When ranks fail, or get SIGUSR2, each writes what its\n"
      "exchanges did last to DIR/rank-N.json, replicas to\n"
      "DIR/replica-M, for `sherd trace flight DIR`");
  run_app->add_flag(
      "--no-prefix", arguments->no_prefix,
      "Show lines without the number of the rank");
  run_app->add_flag(
      "--no-rank0-tty", arguments->no_rank0_tty,
      "On a terminal, treat rank 0 like the others");
  run_app->add_flag(
      "--no-bind", arguments->no_bind,
      "Let every rank use every core; by default each rank\n"
      "gets its own cores if there are enough");
  add("--grace", arguments->grace_seconds, "SECONDS",
      "How long ranks may continue after Ctrl-C or SIGTERM\n"
      "before they are killed (30)")
      ->check(check_seconds);
  run_app->callback(
      [arguments, &program, &status] { status = run(*arguments, program); });
}

}  // namespace sherd::tools
