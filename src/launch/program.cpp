// SPDX-License-Identifier: Apache-2.0
#include "launch/program.h"

#include <sys/stat.h>
#include <unistd.h>
#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string_view>
#include "base/check.h"

namespace sherd::launch {
namespace {

constexpr int kNotFound = 127;
constexpr int kNotExecutable = 126;

// 0 if `path` can be executed, otherwise the error number.
int executable_error(const std::string& path) {
  struct stat status = {};
  if (::stat(path.c_str(), &status) != 0) {
    return errno;
  }
  if (!S_ISREG(status.st_mode)) {
    return S_ISDIR(status.st_mode) ? EISDIR : EACCES;
  }
  return ::access(path.c_str(), X_OK) == 0 ? 0 : errno;
}

}  // namespace

Status cannot(const std::string& what, int error) {
  return {
      ErrorCode::kUnavailable,
      str("cannot ", what, ": ", std::strerror(error))};
}

StartStatus exec_failure(const std::string& path, int error) {
  std::string hint;
  if (error == ENOEXEC) {
    hint = " (a script needs a first line such as #!/bin/sh)";
  } else if (error == ENOENT && executable_error(path) == 0) {
    hint = " (its interpreter, named in the first line, is missing)";
  } else if (error == EACCES && executable_error(path) == EACCES) {
    hint = " (it is not executable; chmod +x?)";
  }
  return {
      error == ENOENT || error == ENOTDIR ? kNotFound : kNotExecutable,
      str("cannot run '", path, "': ", std::strerror(error), hint)};
}

StartStatus find_program(
    const std::string& name,
    const std::string& search_path,
    std::string* path) {
  if (name.find('/') != std::string::npos) {
    *path = name;
    const int error = executable_error(name);
    return error == 0 ? StartStatus() : exec_failure(name, error);
  }
  StartStatus unusable;
  std::string_view rest = search_path;
  while (!rest.empty()) {
    const std::string_view folder = rest.substr(0, rest.find(':'));
    rest.remove_prefix(std::min(rest.size(), folder.size() + 1));
    *path = (folder.empty() ? "." : std::string(folder)) + "/" + name;
    const int error = executable_error(*path);
    if (error == 0) {
      return {};
    }
    if (error == EACCES && unusable.ok()) {
      unusable = exec_failure(*path, error);
    }
  }
  SHERD_RETURN_IF_FAILED(unusable);
  const bool here = executable_error("./" + name) == 0;
  return {
      kNotFound,
      str("cannot find program '", name, "' in PATH",
          here ? str("; did you mean ./", name, "?") : "")};
}

}  // namespace sherd::launch
