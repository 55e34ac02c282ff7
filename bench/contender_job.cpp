// SPDX-License-Identifier: Apache-2.0
#include "bench/contender_job.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <unistd.h>
#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <utility>
#include <sherd/base/error.h>
#include "text_file.h"

namespace sherd::bench {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using std::chrono::steady_clock;

constexpr milliseconds kTick(5);

[[noreturn]] void fail_as_system(const std::string& what) {
  throw Error(
      "[bench] cannot " + what + ": " + std::strerror(errno),
      ErrorCode::kUnavailable);
}

std::vector<std::string> launch_command(const ContenderJob::Spec& setup) {
  std::vector<std::string> command = {
      setup.sherd,   "run",     "-n",          std::to_string(setup.ranks),
      "--no-prefix", "--grace", kGraceSeconds, "--"};
  command.insert(command.end(), setup.command.begin(), setup.command.end());
  return command;
}

}  // namespace

void stop_if_interrupted(const SignalFd& signals) {
  const std::vector<int> arrived = signals.take();
  if (!arrived.empty()) {
    throw Interrupted{arrived.front()};
  }
}

ContenderJob::ContenderJob(std::string name, const SignalFd& signals)
    : name_(std::move(name)), signals_(signals) {}

// Delegates, so that the destructor runs when start() throws.
ContenderJob::ContenderJob(const Spec& setup, const SignalFd& signals)
    : ContenderJob(setup.name, signals) {
  start(setup);
}

void ContenderJob::start(const Spec& setup) {
  int in[2] = {-1, -1};
  int out[2] = {-1, -1};
  errors_ = Descriptor(::memfd_create("bench-errors", MFD_CLOEXEC));
  if (!errors_.open() || ::pipe2(in, O_CLOEXEC) != 0) {
    fail_as_system("start contender " + name_);
  }
  const Descriptor its_in(in[0]);
  to_ = Descriptor(in[1]);
  if (::pipe2(out, O_CLOEXEC) != 0) {
    fail_as_system("start contender " + name_);
  }
  const Descriptor its_out(out[1]);
  from_ = Descriptor(out[0]);
  SpawnResult started = spawn_process(
      {.path = setup.sherd,
       .command = launch_command(setup),
       .environment = setup.environment,
       .standard = {its_in.get(), its_out.get(), errors_.get()}},
      signals_.before());
  if (!started.process) {
    errno = started.error;
    fail_as_system("start contender " + name_);
  }
  process_ = std::move(started.process);
}

ContenderJob::~ContenderJob() {
  to_.close();
  if (process_) {
    process_->kill_and_reap();
  }
}

int ContenderJob::reap() {
  const int status = process_->wait().status();
  process_.reset();
  return status;
}

std::string last_lines_of(std::string output) {
  constexpr std::size_t kShownBytesMax = 4000;
  if (output.size() > kShownBytesMax) {
    output.erase(0, output.size() - kShownBytesMax);
    output.erase(0, output.find('\n') + 1);
  }
  while (output.ends_with('\n')) {
    output.pop_back();
  }
  return output.empty() ? "it had written nothing"
                        : "its last lines:\n" + output;
}

void ContenderJob::fail(const std::string& what) {
  const auto errors =
      tools::text_of_file("/proc/self/fd/" + std::to_string(errors_.get()));
  throw Error(
      "[bench] contender " + name_ + " " + what + "; " +
          last_lines_of(errors.value_or("")),
      ErrorCode::kUnavailable);
}

bool ContenderJob::read_more() {
  std::array<char, 4096> buffer = {};
  const auto count = ::read(from_.get(), buffer.data(), buffer.size());
  if (count > 0) {
    unread_.append(buffer.data(), static_cast<std::size_t>(count));
  }
  return count != 0;
}

std::string ContenderJob::answer(
    Deadline deadline, const std::function<void()>& while_waiting) {
  while (true) {
    for (auto end = unread_.find('\n'); end != std::string::npos;
         end = unread_.find('\n')) {
      const std::string line = unread_.substr(0, end);
      unread_.erase(0, end + 1);
      if (is_answer(line)) {
        return line;
      }
    }
    const auto rest = deadline - steady_clock::now();
    if (rest <= steady_clock::duration::zero()) {
      fail("did not answer in time");
    }
    const auto wait = std::chrono::ceil<milliseconds>(rest);
    std::array<pollfd, 2> events = {
        {{from_.get(), POLLIN, 0}, {signals_.fd(), POLLIN, 0}}};
    ::poll(
        events.data(), events.size(),
        static_cast<int>(
            (while_waiting ? std::min(wait, kTick) : wait).count()));
    stop_if_interrupted(signals_);
    if (events[0].revents != 0 && !read_more()) {
      const int status = reap();
      fail("ended with exit status " + std::to_string(status));
    }
    if (while_waiting) {
      while_waiting();
    }
  }
}

ReadyReply ContenderJob::wait_until_ready(seconds deadline) {
  const auto line = answer(steady_clock::now() + deadline, nullptr);
  const auto ready = parse_reply<ReadyReply>(line);
  if (!ready) {
    fail("should have said that it is ready, and said '" + line + "'");
  }
  return *ready;
}

void ContenderJob::send(int steps) {
  // If the process has ended, the answer is missing, and that is reported.
  const std::string line = std::to_string(steps) + "\n";
  [[maybe_unused]] const auto written =
      ::write(to_.get(), line.data(), line.size());
}

StepsReply ContenderJob::run(
    int steps, seconds deadline, const std::function<void()>& while_waiting) {
  send(steps);
  const auto line = answer(steady_clock::now() + deadline, while_waiting);
  auto ran = parse_reply<StepsReply>(line);
  if (!ran || ran->step_ms.size() != static_cast<std::size_t>(steps)) {
    fail(
        "should have taken " + std::to_string(steps) + " steps, and said '" +
        line + "'");
  }
  return std::move(*ran);
}

bool ContenderJob::wait_for_end_of_output(seconds deadline) {
  const auto until = steady_clock::now() + deadline;
  while (true) {
    const auto rest =
        std::chrono::ceil<milliseconds>(until - steady_clock::now());
    if (rest <= milliseconds(0)) {
      return false;
    }
    pollfd event = {from_.get(), POLLIN, 0};
    if (::poll(&event, 1, static_cast<int>(rest.count())) > 0 && !read_more()) {
      return true;
    }
  }
}

void ContenderJob::end(seconds deadline) {
  send(0);
  to_.close();
  if (!wait_for_end_of_output(deadline)) {
    fail("did not end in time");
  }
  if (const int status = reap(); status != 0) {
    fail("ended with exit status " + std::to_string(status));
  }
}

void ContenderJob::tell_to_stop() const noexcept {
  if (process_) {
    process_->signal_process(SIGTERM);
  }
}

void ContenderJob::stop(seconds deadline) noexcept {
  if (!process_) {
    return;
  }
  if (!wait_for_end_of_output(deadline)) {
    process_->signal_process(SIGKILL);
  }
  reap();
}

}  // namespace sherd::bench
