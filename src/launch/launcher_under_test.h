// SPDX-License-Identifier: Apache-2.0
//
// For tests only: a launcher in a process of its own, like `sherd run`, whose output and end the
// test waits for with a deadline. Ranks are shell scripts. Thread rule: one thread.
#pragma once

#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <sched.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>
#include <csignal>
#include <cstdio>
#include <optional>
#include <string>
#include <utility>
#include <gtest/gtest.h>
#include <sherd/launch/launch.h>
#include "base/clock.h"
#include "base/descriptor.h"

namespace sherd::launch {

// Generous, because the machine may be busy. Bounds that tests claim are separate.
constexpr Duration kTestTimeout = std::chrono::seconds(60);
// What happens sooner has not waited for the grace that follows a signal, which is as long. The
// grace after a failure is far shorter: the tests of the policies, whose clock is theirs, pin it.
constexpr double kSoon_s = 30.0;

// Looks like another process's server to the launcher.
class OccupiedPort {
 public:
  // 0 takes any port. Others may bind the port if they do not listen, as the store of rank 0 does.
  explicit OccupiedPort(int port = 0)
      : socket_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    const int on = 1;
    ::setsockopt(socket_.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<std::uint16_t>(port));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t bytes = sizeof address;
    auto* generic = reinterpret_cast<sockaddr*>(&address);
    EXPECT_EQ(::bind(socket_.get(), generic, bytes), 0);
    EXPECT_EQ(::listen(socket_.get(), 1), 0);
    EXPECT_EQ(::getsockname(socket_.get(), generic, &bytes), 0);
    port_ = ntohs(address.sin_port);
  }
  int port() const { return port_; }

 private:
  Descriptor socket_;
  int port_ = 0;
};

inline std::pair<Descriptor, Descriptor> make_pipe(int flags = O_CLOEXEC) {
  int ends[2] = {-1, -1};
  EXPECT_EQ(::pipe2(ends, flags), 0);
  return {Descriptor(ends[0]), Descriptor(ends[1])};
}

// Waits for input or the end of input; returns false when the deadline has passed.
inline bool wait_readable(int fd, Instant deadline) {
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(
      deadline - SteadyClock().now());
  pollfd polled = {fd, POLLIN, 0};
  return left.count() > 0 &&
      ::poll(&polled, 1, static_cast<int>(left.count())) > 0;
}

inline LaunchOptions ranks_of(int ranks, const std::string& script) {
  LaunchOptions options;
  options.ranks = ranks;
  options.command = {"/bin/sh", "-c", script};
  options.environment = {"PATH=/usr/local/bin:/usr/bin:/bin"};
  return options;
}

struct LauncherResult {
  int exit_status = -1;  // -1 if it was killed or has not ended in time.
  int signal = 0;
  std::string out;
  std::string err;
};

// The number after the last `label` in the launcher's output.
inline pid_t process_after(const std::string& label, const std::string& text) {
  const std::size_t at = text.rfind(label);
  EXPECT_NE(at, std::string::npos) << text;
  return at == std::string::npos
      ? -1
      : static_cast<pid_t>(std::stol(text.substr(at + label.size())));
}

class LauncherProcess {
 public:
  // `stdin_fd` and so on replace the launcher's own; -1 means no input, and pipes that the test
  // reads. `ignored` is a signal to ignore, as under nohup; `descriptors` is a limit of open
  // files. Without `network`, there is not even a loopback interface; where that is refused, the
  // launcher ends with kNoNamespaces.
  struct Streams {
    int stdin_fd = -1;
    int stdout_fd = -1;
    int stderr_fd = -1;
    int ignored = 0;
    std::optional<rlimit> descriptors{};
    bool network = true;
  };
  static constexpr int kNoNamespaces = 99;

  explicit LauncherProcess(const LaunchOptions& options)
      : LauncherProcess(options, Streams()) {}
  LauncherProcess(const LaunchOptions& options, const Streams& streams) {
    auto [out_in, out_out] = make_pipe();
    auto [err_in, err_out] = make_pipe();
    // Exec does not close it: every process below the launcher holds it open.
    auto [alive_in, alive_out] = make_pipe(0);
    // Otherwise a launcher that ends in order prints it, too.
    std::fflush(nullptr);
    pid_ = ::fork();
    if (pid_ == 0) {
      become_launcher(
          options, streams, {out_out.get(), err_out.get(), alive_out.get()});
    }
    out_ = std::move(out_in);
    err_ = std::move(err_in);
    alive_ = std::move(alive_in);
  }
  ~LauncherProcess() {
    if (pid_ > 0) {  // The test has failed: leave nothing behind.
      ::kill(pid_, SIGKILL);
      ::waitpid(pid_, nullptr, 0);
    }
  }
  LauncherProcess(const LauncherProcess&) = delete;
  LauncherProcess& operator=(const LauncherProcess&) = delete;

  void signal(int number) const { ::kill(pid_, number); }
  void close_stdout() { out_.close(); }

  // Returns false if `text` does not appear in time, or not often enough.
  bool wait_for_out(const std::string& text, int times = 1) {
    return wait_for(out_.get(), &outcome_.out, text, times);
  }
  bool wait_for_err(const std::string& text) {
    return wait_for(err_.get(), &outcome_.err, text, 1);
  }
  const std::string& out() const { return outcome_.out; }
  const std::string& err() const { return outcome_.err; }

  // Returns true if no process below the launcher is left before the deadline.
  bool wait_for_death_of_all() const {
    return wait_readable(alive_.get(), SteadyClock().now() + kTestTimeout);
  }

  // Reads all output and waits for the launcher.
  LauncherResult finish() {
    const Instant deadline = SteadyClock().now() + kTestTimeout;
    while ((out_.open() || err_.open()) && SteadyClock().now() < deadline) {
      pollfd polled[2] = {{out_.get(), POLLIN, 0}, {err_.get(), POLLIN, 0}};
      ::poll(polled, 2, 1000);
      if (polled[0].revents != 0 && !read_some(out_.get(), &outcome_.out)) {
        out_.close();
      }
      if (polled[1].revents != 0 && !read_some(err_.get(), &outcome_.err)) {
        err_.close();
      }
    }
    if (out_.open() || err_.open()) {
      ADD_FAILURE() << "the launcher did not end; so far:\n"
                    << outcome_.out << outcome_.err;
      return outcome_;
    }
    int status = 0;
    ::waitpid(std::exchange(pid_, -1), &status, 0);
    outcome_.exit_status = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
    outcome_.signal = WIFSIGNALED(status) ? WTERMSIG(status) : 0;
    return outcome_;
  }

 private:
  struct Ends {
    int out;
    int err;
    int alive;
  };

  [[noreturn]] static void become_launcher(
      const LaunchOptions& options, const Streams& streams, const Ends& ends) {
    for (const int number :
         {SIGINT, SIGQUIT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2, SIGCHLD}) {
      ::signal(number, number == streams.ignored ? SIG_IGN : SIG_DFL);
    }
    const int nothing = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
    ::dup2(streams.stdin_fd >= 0 ? streams.stdin_fd : nothing, STDIN_FILENO);
    ::dup2(
        streams.stdout_fd >= 0 ? streams.stdout_fd : ends.out, STDOUT_FILENO);
    ::dup2(
        streams.stderr_fd >= 0 ? streams.stderr_fd : ends.err, STDERR_FILENO);
    // Also the test's ends, which no exec closes here.
    const auto alive = static_cast<unsigned>(ends.alive);
    ::close_range(STDERR_FILENO + 1, alive - 1, 0);
    ::close_range(alive + 1, ~0U, 0);
    if (streams.descriptors) {
      ::setrlimit(RLIMIT_NOFILE, &*streams.descriptors);
    }
    if (!streams.network && ::unshare(CLONE_NEWNET) != 0 &&
        ::unshare(CLONE_NEWUSER | CLONE_NEWNET) != 0) {
      ::_exit(kNoNamespaces);
    }
    ::_exit(run(options));
  }

  static bool read_some(int fd, std::string* to) {
    char buffer[65536];
    const ssize_t count = ::read(fd, buffer, sizeof buffer);
    if (count > 0) {
      to->append(buffer, static_cast<std::size_t>(count));
    }
    return count > 0;
  }

  static int times_in(const std::string& have, const std::string& text) {
    int times = 0;
    for (std::size_t at = have.find(text); at != std::string::npos;
         at = have.find(text, at + 1)) {
      ++times;
    }
    return times;
  }

  static bool wait_for(
      int fd, std::string* have, const std::string& text, int times) {
    const Instant deadline = SteadyClock().now() + kTestTimeout;
    while (times_in(*have, text) < times) {
      if (!wait_readable(fd, deadline) || !read_some(fd, have)) {
        ADD_FAILURE() << "expected '" << text << "', found: " << *have;
        return false;
      }
    }
    return true;
  }

  pid_t pid_ = -1;
  Descriptor out_;
  Descriptor err_;
  Descriptor alive_;
  LauncherResult outcome_;
};

inline LauncherResult launch_and_wait(const LaunchOptions& options) {
  return LauncherProcess(options).finish();
}

}  // namespace sherd::launch
