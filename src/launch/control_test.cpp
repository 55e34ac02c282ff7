// SPDX-License-Identifier: Apache-2.0
//
// The socket over which an operator asks a launcher for something.
#include "launch/control.h"

#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <fstream>
#include <string>
#include <utility>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include "base/descriptor.h"
#include "support/scratch_folder.h"

namespace sherd::launch {
namespace {

using ::sherd::testing::ScratchFolder;
using ::testing::HasSubstr;

class Control : public ::testing::Test {
 protected:
  std::string path() const { return folder_.path() + "/socket"; }
  ScratchFolder folder_;
};

TEST_F(Control, AnswersAndIsForItsOwnerAlone) {
  Result<ControlSocket> opened = ControlSocket::open(path());
  ASSERT_TRUE(opened.ok()) << opened.status().message();
  ControlSocket socket = std::move(opened).value();
  struct stat status = {};
  ASSERT_EQ(::stat(path().c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777U, 0700U);
  EXPECT_FALSE(socket.receive());
  EXPECT_THAT(
      ControlSocket::open(path()).status().message(),
      HasSubstr("another launcher listens"));
}

TEST_F(Control, ReplacesASocketThatIsLeftOverAndNothingElse) {
  Descriptor left(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  ASSERT_TRUE(left.open());
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  path().copy(address.sun_path, sizeof address.sun_path - 1);
  ASSERT_EQ(
      ::bind(
          left.get(), reinterpret_cast<const sockaddr*>(&address),
          sizeof address),
      0);
  // The launcher is still alive.
  EXPECT_FALSE(ControlSocket::open(path()).ok());
  left.close();
  EXPECT_TRUE(ControlSocket::open(path()).ok());
  std::ofstream(path()) << "a file\n";
  EXPECT_THAT(
      ControlSocket::open(path()).status().message(), HasSubstr("no socket"));
  EXPECT_THAT(
      ControlSocket::open(std::string(200, 'x')).status().message(),
      HasSubstr("at most 107 bytes, found 200"));
}

TEST_F(Control, QuestionsAreCheckedWhole) {
  const Result<ControlRequest> good = parse_control_request("admit 12");
  ASSERT_TRUE(good.ok());
  EXPECT_EQ(good.value().what, ControlRequest::What::kAdmit);
  EXPECT_EQ(good.value().replica, 12);
  for (const char* bad :
       {"", "drain", "drain ", "drain x", "drain 1x", "drain 1 2", "stop 1",
        "drain 99999999999", " drain 1"}) {
    EXPECT_FALSE(parse_control_request(bad).ok()) << bad;
  }
  EXPECT_FALSE(parse_control_request("drain " + std::string(5000, '0')).ok());
}

}  // namespace
}  // namespace sherd::launch
