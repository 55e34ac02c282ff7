// SPDX-License-Identifier: Apache-2.0
#include <sherd/base/run_main.h>

#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <stdexcept>
#include <string>
#include <system_error>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sherd/base/error.h>

namespace sherd {
namespace {

struct MainOutcome {
  int status = -1;
  std::string shown;  // On stderr.
};

MainOutcome outcome_of(const std::function<int()>& body) {
  std::string program = "/usr/lib/my-train";
  char* argv[] = {program.data(), nullptr};
  ::testing::internal::CaptureStderr();
  const int status = run_main(1, argv, body);
  return {status, ::testing::internal::GetCapturedStderr()};
}

TEST(RunMain, ReturnsWhatTheProgramReturns) {
  const auto outcome = outcome_of([] { return 7; });
  EXPECT_EQ(outcome.status, 7);
  EXPECT_EQ(outcome.shown, "");
}

TEST(RunMain, AnErrorIsOneLineAndWrongUsageHasAStatusOfItsOwn) {
  const auto usage =
      outcome_of([]() -> int { throw Error("expected 1, found 2"); });
  EXPECT_EQ(usage.status, 2);
  EXPECT_EQ(usage.shown, "my-train: expected 1, found 2\n");
  const auto lost = outcome_of(
      []() -> int { throw Error("rank 1 was lost", ErrorCode::kPeerLost); });
  EXPECT_EQ(lost.status, 1);
  EXPECT_EQ(lost.shown, "my-train: rank 1 was lost\n");
}

TEST(RunMain, ALineIsSeenInAPipeBeforeTheProgramEnds) {
  int out[2];
  ASSERT_EQ(::pipe2(out, O_CLOEXEC), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    ::dup2(out[1], STDOUT_FILENO);
    char program[] = "my-train";
    char* argv[] = {program, nullptr};
    ::_exit(run_main(1, argv, [] {
      // Not a plain text, which the compiler would give to puts(); puts() only respects the
      // buffering of the stream's first use, which was the test's own.
      std::printf("step %d\n", 1);
      return ::pause();  // Until it is killed.
    }));
  }
  pollfd line{out[0], POLLIN, 0};
  EXPECT_EQ(::poll(&line, 1, 20000), 1);
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
  ::close(out[0]);
  ::close(out[1]);
}

TEST(RunMain, AFileThatIsTooLargeIsAnErrorAndNotTheEnd) {
  const pid_t child = ::fork();
  if (child == 0) {
    std::signal(SIGXFSZ, SIG_DFL);
    char program[] = "my-train";
    char* argv[] = {program, nullptr};
    ::_exit(run_main(1, argv, [] {
      const rlimit limit{.rlim_cur = 1, .rlim_max = 1};
      const int file = ::memfd_create("file", MFD_CLOEXEC);
      const bool limited = ::setrlimit(RLIMIT_FSIZE, &limit) == 0;
      const bool failed = ::ftruncate(file, 2) == -1 && errno == EFBIG;
      return limited && failed ? 7 : 1;
    }));
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  EXPECT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 7);
}

// A socket with such a number would get what is printed.
TEST(RunMain, NoFileTakesThePlaceOfAClosedStandardDescriptor) {
  const pid_t child = ::fork();
  if (child == 0) {
    for (const int fd : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
      ::close(fd);
    }
    char program[] = "my-train";
    char* argv[] = {program, nullptr};
    ::_exit(run_main(1, argv, [] {
      const int file = ::memfd_create("file", MFD_CLOEXEC);
      char byte = 'x';
      const bool at_end = ::read(STDIN_FILENO, &byte, 1) == 0;
      bool lost = true;
      for (const int fd : {STDOUT_FILENO, STDERR_FILENO}) {
        lost = ::write(fd, &byte, 1) == -1 && errno == EBADF && lost;
      }
      return file > STDERR_FILENO && at_end && lost ? 7 : 1;
    }));
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  EXPECT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 7);
}

TEST(RunMain, ALimitOfThreadsIsNamed) {
  const auto outcome = outcome_of([]() -> int {
    throw std::system_error(
        std::make_error_code(std::errc::resource_unavailable_try_again));
  });
  EXPECT_EQ(outcome.status, 1);
  EXPECT_EQ(
      outcome.shown,
      "my-train: Resource temporarily unavailable: no more threads or "
      "processes; raise the limit (ulimit -u, or that of the container)\n");
}

TEST(RunMain, LibTorchsFramesAreLeftOut) {
  const auto outcome = outcome_of([]() -> int {
    throw std::runtime_error(
        "mat1 and mat2 shapes cannot be multiplied (2x3 and 4x5)\n"
        "in a second line\n"
        "Exception raised from meta at LinearAlgebra.cpp:214 (most recent call "
        "first):\nframe #0: c10::Error::Error + 0x5c\n");
  });
  EXPECT_EQ(outcome.status, 1);
  EXPECT_EQ(
      outcome.shown,
      "my-train: mat1 and mat2 shapes cannot be multiplied (2x3 and 4x5)\n"
      "in a second line\n");
}

TEST(RunMain, FramesBeginInTwoWays) {
  EXPECT_EQ(
      without_backtrace("can't allocate 8 bytes\nframe #0: c10::alloc_cpu\n"),
      "can't allocate 8 bytes");
  EXPECT_EQ(without_backtrace("no frame #0: here"), "no frame #0: here");
}

TEST(RunMain, WhatIsNoExceptionEndsTheProgramToo) {
  const auto outcome = outcome_of([]() -> int { throw 3; });
  EXPECT_EQ(outcome.status, 1);
  EXPECT_THAT(outcome.shown, ::testing::HasSubstr("no std::exception"));
}

}  // namespace
}  // namespace sherd
