// SPDX-License-Identifier: Apache-2.0
#include <sherd/base/run_main.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <exception>
#include <system_error>
#include <sherd/base/error.h>
#include "base/standard_descriptors.h"

namespace sherd {
namespace {

constexpr int kFailed = 1;
constexpr int kUsageError = 2;
// How what() of c10::Error and c10::EnforceNotMet continues after the message.
constexpr const char* kBacktraces[] = {
    "\nException raised from ", "\nframe #0: "};

std::string program_of(int argc, char** argv) {
  const std::string path = argc > 0 ? argv[0] : "";
  const auto slash = path.rfind('/');
  return slash == std::string::npos ? path : path.substr(slash + 1);
}

}  // namespace

std::string without_backtrace(const std::string& message) {
  std::size_t end = message.size();
  for (const char* backtrace : kBacktraces) {
    end = std::min(end, message.find(backtrace));
  }
  return message.substr(0, end);
}

int run_main(int argc, char** argv, const std::function<int()>& body) {
  fill_standard_descriptors();
  // Line-buffered, so that a launcher's pipe shows each line as soon as it is complete.
  (void)std::setvbuf(stdout, nullptr, _IOLBF, 0);
  // A write beyond RLIMIT_FSIZE then fails as one to a full disk does.
  (void)std::signal(SIGXFSZ, SIG_IGN);
  int status = kFailed;
  std::string message;
  try {
    return body();
  } catch (const Error& error) {
    status =
        error.code() == ErrorCode::kInvalidArgument ? kUsageError : kFailed;
    message = error.what();
  } catch (const std::system_error& error) {
    message = error.what();
    if (error.code() == std::errc::resource_unavailable_try_again) {
      // std::thread does not say what there was too little of.
      message +=
          ": no more threads or processes; raise the limit (ulimit -u, or "
          "that of the container)";
    }
  } catch (const std::exception& error) {
    message = without_backtrace(error.what());
  } catch (...) {
    message = "an exception that is no std::exception";
  }
  std::fprintf(
      stderr, "%s: %s\n", program_of(argc, argv).c_str(), message.c_str());
  return status;
}

}  // namespace sherd
