// SPDX-License-Identifier: Apache-2.0
#include "support/child_process.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>
#include <algorithm>
#include <array>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include "base/check.h"
#include "support/delay.h"

namespace sherd::test {
namespace {

using std::chrono::milliseconds;

// A message consists of a kind, a length and that many bytes.
constexpr char kPoint = 'p';
constexpr char kResult = 'r';

void write_all(int fd, const char* data, std::size_t size) {
  while (size > 0) {
    const ssize_t n = ::write(fd, data, size);
    SHERD_CHECK(n > 0, "[test] expected the parent to listen");
    data += n;
    size -= static_cast<std::size_t>(n);
  }
}

void write_message(int fd, char kind, const std::string& text) {
  const std::uint64_t size = text.size();
  write_all(fd, &kind, 1);
  write_all(fd, reinterpret_cast<const char*>(&size), sizeof(size));
  write_all(fd, text.data(), text.size());
}

struct Child {
  pid_t pid = -1;
  int ended_fd = -1;   // pidfd.
  int output_fd = -1;  // -1 once all writers have closed it.
  int link_fd = -1;
  bool running = true;
  bool stopped = false;
  std::string link_bytes;
  ChildEnd end;
};

class Parent {
 public:
  explicit Parent(const ChildrenOptions& options) : options_(options) {}
  ~Parent() {
    for (Child& child : children_) {
      for (const int fd : {child.ended_fd, child.output_fd, child.link_fd}) {
        if (fd >= 0) {
          ::close(fd);
        }
      }
    }
  }
  Parent(const Parent&) = delete;
  Parent& operator=(const Parent&) = delete;

  void start(const std::function<int(int, ChildLink&)>& body);
  ChildrenReport watch();

 private:
  void become_child(
      int index,
      int output,
      int link,
      const std::function<int(int, ChildLink&)>& body);
  void read_output(Child& child);
  void read_link(Child& child, int index);
  void at_point(Child& child, int index, const std::string& point);
  static void go_on(Child& child);
  void reap(Child& child);
  void end_of_time();
  int running(bool with_stopped) const;

  const ChildrenOptions& options_;
  const SteadyClock clock_;
  std::vector<Child> children_;
  Instant struck_at_{0};
};

void Parent::become_child(
    int index,
    int output,
    int link,
    const std::function<int(int, ChildLink&)>& body) {
  // If the test runner is killed, it must not leave ranks behind.
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  // The default, as in a program started by a shell; some test runners ignore it.
  ::signal(SIGPIPE, SIG_DFL);
  ::dup2(output, STDOUT_FILENO);
  ::dup2(output, STDERR_FILENO);
  for (Child& earlier : children_) {
    ::close(earlier.output_fd);
    ::close(earlier.link_fd);
    ::close(earlier.ended_fd);
  }
  ChildLink line(link);
  const int code = body(index, line);
  std::fflush(nullptr);
  ::_exit(code);
}

void Parent::start(const std::function<int(int, ChildLink&)>& body) {
  std::fflush(nullptr);
  for (int i = 0; i < options_.count; ++i) {
    std::array<int, 2> output{};
    std::array<int, 2> link{};
    SHERD_CHECK(
        ::pipe2(output.data(), O_CLOEXEC) == 0 &&
            ::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, link.data()) ==
                0,
        "[test] expected pipes for a child");
    const pid_t pid = ::fork();
    SHERD_CHECK(pid >= 0, "[test] expected to fork");
    if (pid == 0) {
      ::close(output[0]);
      ::close(link[0]);
      become_child(i, output[1], link[1], body);
    }
    ::close(output[1]);
    ::close(link[1]);
    Child child;
    child.pid = pid;
    child.ended_fd = static_cast<int>(::syscall(SYS_pidfd_open, pid, 0U));
    child.output_fd = output[0];
    child.link_fd = link[0];
    ::fcntl(child.output_fd, F_SETFL, O_NONBLOCK);
    ::fcntl(child.link_fd, F_SETFL, O_NONBLOCK);
    children_.push_back(std::move(child));
  }
}

void Parent::read_output(Child& child) {
  std::array<char, 4096> bytes{};
  for (;;) {
    const ssize_t n = ::read(child.output_fd, bytes.data(), bytes.size());
    if (n > 0) {
      child.end.output.append(bytes.data(), static_cast<std::size_t>(n));
      continue;
    }
    if (n == 0) {
      ::close(child.output_fd);
      child.output_fd = -1;
    }
    return;
  }
}

void Parent::read_link(Child& child, int index) {
  std::array<char, 4096> bytes{};
  for (;;) {
    const ssize_t n = ::read(child.link_fd, bytes.data(), bytes.size());
    if (n <= 0) {
      if (n == 0) {
        ::close(child.link_fd);
        child.link_fd = -1;
      }
      break;
    }
    child.link_bytes.append(bytes.data(), static_cast<std::size_t>(n));
  }
  constexpr std::size_t kHeader = 1 + sizeof(std::uint64_t);
  while (child.link_bytes.size() >= kHeader) {
    std::uint64_t size = 0;
    std::copy_n(
        child.link_bytes.data() + 1, sizeof(size),
        reinterpret_cast<char*>(&size));
    if (child.link_bytes.size() < kHeader + size) {
      return;
    }
    const char kind = child.link_bytes[0];
    const std::string text = child.link_bytes.substr(kHeader, size);
    child.link_bytes.erase(0, kHeader + size);
    if (kind == kResult) {
      child.end.result += text;
    } else {
      at_point(child, index, text);
    }
  }
}

void Parent::at_point(Child& child, int index, const std::string& point) {
  for (const Strike& strike : options_.strikes) {
    if (strike.child != index || strike.point != point) {
      continue;
    }
    const bool goes_on = strike.later.count() > 0;
    if (goes_on) {
      go_on(child);
      be_late(strike.later);
    }
    struck_at_ = clock_.now();
    child.stopped = child.stopped || strike.signal == SIGSTOP;
    ::kill(child.pid, strike.signal);
    if (goes_on || strike.signal == SIGKILL || strike.signal == SIGSTOP) {
      return;  // The child is gone and need not be told to go on.
    }
  }
  go_on(child);
}

void Parent::go_on(Child& child) {
  const char go = 'g';
  [[maybe_unused]] const auto written = ::write(child.link_fd, &go, 1);
}

void Parent::reap(Child& child) {
  int status = 0;
  SHERD_CHECK(
      ::waitpid(child.pid, &status, 0) == child.pid,
      "[test] expected to reap a child");
  child.running = false;
  child.end.ended_at = clock_.now();
  if (WIFEXITED(status)) {
    child.end.exit_code = WEXITSTATUS(status);
  } else {
    child.end.signal = WTERMSIG(status);
  }
}

int Parent::running(bool with_stopped) const {
  return static_cast<int>(std::count_if(
      children_.begin(), children_.end(), [&](const Child& child) {
        return child.running && (with_stopped || !child.stopped);
      }));
}

void Parent::end_of_time() {
  for (Child& child : children_) {
    if (child.running) {
      child.end.timed_out = !child.stopped;
      ::kill(child.pid, SIGKILL);
    }
  }
}

ChildrenReport Parent::watch() {
  const Instant limit = clock_.now() + options_.timeout;
  bool killed = false;
  while (running(true) > 0) {
    std::vector<pollfd> fds;
    for (const Child& child : children_) {
      fds.push_back({child.running ? child.ended_fd : -1, POLLIN, 0});
      fds.push_back({child.output_fd, POLLIN, 0});
      fds.push_back({child.link_fd, POLLIN, 0});
    }
    const auto rest =
        std::chrono::duration_cast<milliseconds>(limit - clock_.now());
    const auto wait = std::max(rest, milliseconds(0)).count() + 1;
    ::poll(fds.data(), fds.size(), killed ? -1 : static_cast<int>(wait));
    for (std::size_t i = 0; i < children_.size(); ++i) {
      Child& child = children_[i];
      if (child.output_fd >= 0) {
        read_output(child);
      }
      if (child.link_fd >= 0) {
        read_link(child, static_cast<int>(i));
      }
      if (fds[3 * i].revents != 0) {
        reap(child);
        if (child.output_fd >= 0) {
          read_output(child);
        }
        if (child.link_fd >= 0) {
          read_link(child, static_cast<int>(i));
        }
      }
    }
    if (!killed && (clock_.now() >= limit || running(false) == 0)) {
      killed = true;
      end_of_time();
    }
  }
  ChildrenReport report;
  report.struck_at = struck_at_;
  for (Child& child : children_) {
    report.children.push_back(std::move(child.end));
  }
  return report;
}

}  // namespace

void ChildLink::reach(const std::string& point) {
  write_message(socket_, kPoint, point);
  char go = 0;
  SHERD_CHECK(
      ::read(socket_, &go, 1) == 1, "[test] expected the parent to answer");
}

void ChildLink::report(const std::string& bytes) {
  write_message(socket_, kResult, bytes);
}

ChildrenReport run_children(
    const ChildrenOptions& options,
    const std::function<int(int index, ChildLink& link)>& body) {
  Parent parent(options);
  parent.start(body);
  return parent.watch();
}

}  // namespace sherd::test
