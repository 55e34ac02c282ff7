// SPDX-License-Identifier: Apache-2.0
#include "net/security.h"

#include <fcntl.h>
#include <unistd.h>
#include <filesystem>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include "net/net_testing.h"
#include "support/error_of.h"
#include "support/scratch_folder.h"

namespace sherd::net {
namespace {

using ::sherd::testing::ScratchFolder;
using test::error_of;
using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::make_certificate;
using testing::make_certificate_of;
using testing::run_until;
using testing::TestEndpoint;
using testing::TestServer;

const std::string kSecret = "a secret of this run";

TEST(Security, KnowsAddressesOfThisHost) {
  for (const char* ip :
       {"127.0.0.1", "127.255.1.2", "::1", "::ffff:127.0.0.1"}) {
    EXPECT_TRUE(is_loopback(ip)) << ip;
  }
  for (const char* ip :
       {"0.0.0.0", "::", "128.0.0.1", "10.0.0.1", "::2", "::ffff:10.0.0.1",
        "localhost", "", "127.0.0.1.evil.org"}) {
    EXPECT_FALSE(is_loopback(ip)) << ip;
  }
}

TEST(Security, IsDemandedBeyondThisHost) {
  check_security({}, "127.0.0.1");
  check_security(shared_secret(kSecret), "10.0.0.1");
  EXPECT_THAT(
      error_of([] { check_security({}, "10.0.0.1"); }),
      AllOf(
          HasSubstr("expected a shared secret or certificates"),
          HasSubstr("10.0.0.1")));
}

TEST(Security, RefusesShortSecrets) {
  EXPECT_THAT(
      error_of([] { shared_secret("0123456789abcde"); }),
      HasSubstr("at least 16 bytes, found 15"));
  EXPECT_EQ(shared_secret("0123456789abcdef").secret, "0123456789abcdef");
}

TEST(Security, ReadsASecretWithoutItsLineEnd) {
  const ScratchFolder folder;
  EXPECT_EQ(
      read_shared_secret(folder.file("secret", kSecret + "\r\n")).secret,
      kSecret);
  const std::string longest(4096, 's');
  EXPECT_EQ(
      read_shared_secret(folder.file("longest", longest)).secret, longest);
  const std::string too_long = folder.file("long", longest + "s");
  EXPECT_THAT(
      error_of([&] { read_shared_secret(too_long); }),
      HasSubstr("longer than 4096 bytes"));
  const std::string path = folder.file("short", "short\n");
  EXPECT_THAT(
      error_of([&] { read_shared_secret(path); }),
      AllOf(HasSubstr(path), HasSubstr("found 5")));
  EXPECT_THAT(
      error_of([&] { read_shared_secret(folder.path() + "/none"); }),
      HasSubstr("No such file"));
  EXPECT_THAT(
      error_of([&] { read_shared_secret(folder.path()); }),
      HasSubstr("expected a file with the secret"));
}

// What the two sides report after a handshake.
struct HandshakeOutcome {
  HandshakeOutcome(const Security& listening, const Security& dialling)
      : server(loop, {.security = listening}) {
    dialled = testing::dial(
        loop, server.listener->address(), client, {.security = dialling});
    EXPECT_TRUE(run_until(
        loop, [&] { return !server.refused.empty() || !server.ends.empty(); }));
  }
  std::string refused() const {
    return server.refused.empty() ? "" : server.refused[0];
  }
  // Whether frames pass in both directions.
  bool talk() {
    if (client.connection == nullptr || server.ends.empty()) {
      return false;
    }
    client.connection->send(1, "ping");
    server.ends[0]->connection->send(2, "pong");
    return run_until(loop, [&] {
      return !client.frames.empty() && !server.ends[0]->frames.empty();
    });
  }
  // A client with the listener's own security is still accepted.
  std::string next(const Security& security) {
    return testing::dial(
        loop, server.listener->address(), client, {.security = security});
  }
  Loop loop;
  TestServer server;
  TestEndpoint client;
  std::string dialled;
};

TEST(SharedSecret, LetsThoseInWhoHaveIt) {
  HandshakeOutcome meeting(shared_secret(kSecret), shared_secret(kSecret));
  EXPECT_EQ(meeting.dialled, "");
  EXPECT_TRUE(meeting.talk());
}

TEST(SharedSecret, KeepsThoseOutWhoHaveAnother) {
  HandshakeOutcome meeting(
      shared_secret(kSecret), shared_secret("another one altogether"));
  EXPECT_THAT(
      meeting.dialled, HasSubstr("expected the same secret on both sides"));
  EXPECT_THAT(
      meeting.refused(), HasSubstr("expected the same secret on both sides"));
  EXPECT_TRUE(meeting.server.ends.empty());
  EXPECT_EQ(meeting.next(shared_secret(kSecret)), "");
}

TEST(SharedSecret, KeepsThoseOutWhoHaveNone) {
  HandshakeOutcome meeting(shared_secret(kSecret), {});
  EXPECT_THAT(
      meeting.dialled, HasSubstr("it may want a secret or certificate"));
  EXPECT_THAT(meeting.refused(), HasSubstr("expected TLS, found other bytes"));
  EXPECT_TRUE(meeting.server.ends.empty());
  EXPECT_EQ(meeting.next(shared_secret(kSecret)), "");
}

TEST(SharedSecret, IsNotShownToAServerWithoutOne) {
  HandshakeOutcome meeting({}, shared_secret(kSecret));
  EXPECT_THAT(
      meeting.dialled, HasSubstr("the peer has no secret or certificate"));
  EXPECT_THAT(meeting.refused(), HasSubstr("TLS"));
  EXPECT_TRUE(meeting.server.ends.empty());
  EXPECT_EQ(meeting.next({}), "");
}

// A client whose bytes are recorded on their way.
struct Tapped {
  explicit Tapped(const Security& security)
      : server(loop, {.security = security}),
        tap(server.listener->address().port),
        dial(
            loop,
            tap.address(),
            {.security = security},
            [this](Result<ConnectionHandle> result) {
              client.start(std::move(result).value());
            }) {
    EXPECT_TRUE(until([this] {
      return client.connection != nullptr && !server.ends.empty();
    }));
  }
  bool until(const std::function<bool()>& predicate) {
    return run_until(loop, [&] {
      tap.pump();
      return predicate();
    });
  }
  Loop loop;
  TestServer server;
  testing::RecordingProxy tap;
  TestEndpoint client;
  Connector dial;
};

TEST(SharedSecret, HidesFramesAndItself) {
  for (const Security& security : {Security(), shared_secret(kSecret)}) {
    Tapped tapped(security);
    tapped.client.connection->send(1, "plain words");
    tapped.server.ends[0]->connection->send(1, "plain answer");
    ASSERT_TRUE(tapped.until([&] {
      return !tapped.server.ends[0]->frames.empty() &&
          !tapped.client.frames.empty();
    }));
    const bool plain = security.kind == Security::Kind::kNone;
    const std::string seen = tapped.tap.to_listener + tapped.tap.to_client;
    for (const char* word : {"SHRD", "plain words", "plain answer"}) {
      EXPECT_EQ(seen.find(word) != std::string::npos, plain) << word;
    }
    EXPECT_EQ(seen.find(kSecret), std::string::npos);
  }
}

TEST(SharedSecret, ClosesWhatWasChangedOnItsWay) {
  Tapped tapped(shared_secret(kSecret));
  tapped.tap.change = [](std::string& bytes) {
    if (!bytes.empty()) {
      bytes.back() = static_cast<char>(bytes.back() ^ 1);
    }
  };
  tapped.client.connection->send(1, "changed");
  ASSERT_TRUE(tapped.until([&] { return tapped.server.ends[0]->is_closed(); }));
  EXPECT_TRUE(tapped.server.ends[0]->frames.empty());
  EXPECT_THAT(tapped.server.ends[0]->reason(), HasSubstr("bytes are damaged"));
  ASSERT_TRUE(tapped.until([&] { return tapped.client.is_closed(); }));
  EXPECT_THAT(tapped.client.reason(), HasSubstr("bytes are damaged"));
}

TEST(SharedSecret, RefusesWhatIsReplayed) {
  Tapped tapped(shared_secret(kSecret));
  tapped.client.connection->send(1, "once");
  TestServer& server = tapped.server;
  ASSERT_TRUE(tapped.until([&] { return !server.ends[0]->frames.empty(); }));
  const testing::RawClient thief(server.listener->address().port);
  thief.send(tapped.tap.to_listener);
  ASSERT_TRUE(tapped.until([&] { return !server.refused.empty(); }));
  EXPECT_EQ(server.ends.size(), 1U);
}

TEST(MutualTls, LetsThoseInOfTheSameAuthority) {
  const ScratchFolder folder;
  const TlsFiles one = make_certificate(folder.path(), "one");
  const TlsFiles two = make_certificate_of(folder.path(), "two", "one");
  HandshakeOutcome meeting(mutual_tls(one), mutual_tls(two));
  EXPECT_EQ(meeting.dialled, "");
  EXPECT_TRUE(meeting.talk());
}

TEST(MutualTls, KeepsThoseOutOfAnother) {
  const ScratchFolder folder;
  const TlsFiles one = make_certificate(folder.path(), "one");
  const TlsFiles foreign = make_certificate(folder.path(), "foreign");
  // It trusts the listener but is not trusted by it.
  const TlsFiles liar{foreign.certificate, foreign.key, one.authority};
  for (const TlsFiles& files : {foreign, liar}) {
    HandshakeOutcome meeting(mutual_tls(one), mutual_tls(files));
    EXPECT_THAT(
        meeting.dialled,
        HasSubstr("expected certificates of the same authority"));
    EXPECT_THAT(
        meeting.refused(),
        HasSubstr("expected certificates of the same authority"));
    EXPECT_TRUE(meeting.server.ends.empty());
    EXPECT_EQ(meeting.next(mutual_tls(one)), "");
  }
}

TEST(MutualTls, KeepsThoseOutWhoHaveOnlyASecretOrNothing) {
  const ScratchFolder folder;
  const Security files = mutual_tls(make_certificate(folder.path(), "one"));
  for (const Security& other : {Security(), shared_secret(kSecret)}) {
    for (const bool files_listen : {true, false}) {
      HandshakeOutcome meeting(
          files_listen ? files : other, files_listen ? other : files);
      EXPECT_NE(meeting.dialled, "");
      EXPECT_NE(meeting.refused(), "");
      EXPECT_TRUE(meeting.server.ends.empty());
    }
  }
}

// Certificates with a short life are replaced while coordinators and replicas run on.
TEST(MutualTls, ReadsFilesAgainThatHaveChanged) {
  namespace fs = std::filesystem;
  const ScratchFolder folder;
  const TlsFiles client = make_certificate(folder.path(), "authority");
  const TlsFiles foreign = make_certificate(folder.path(), "foreign");
  const TlsFiles right =
      make_certificate_of(folder.path(), "right", "authority");
  const std::string files = folder.path() + "/files";
  fs::create_directory(files);
  const TlsFiles used = {
      files + "/certificate", files + "/key", client.authority};
  // As a certificate's manager does it: nobody sees half a file.
  const auto replace = [&](const std::string& from, const std::string& to) {
    fs::copy_file(from, to + ".new");
    fs::rename(to + ".new", to);
  };
  replace(foreign.certificate, used.certificate);
  replace(foreign.key, used.key);
  HandshakeOutcome meeting(mutual_tls(used), mutual_tls(client));
  EXPECT_THAT(meeting.dialled, HasSubstr("of the same authority"));
  // A certificate without its key is not used yet, and the listener goes on.
  replace(right.certificate, used.certificate);
  EXPECT_THAT(
      meeting.next(mutual_tls(client)), HasSubstr("of the same authority"));
  replace(right.key, used.key);
  EXPECT_EQ(meeting.next(mutual_tls(client)), "");
  EXPECT_TRUE(meeting.talk());
}

Security with_peer(const TlsFiles& files, PeerRole peer) {
  Security security = mutual_tls(files);
  security.peer = peer;
  return security;
}

TEST(MutualTls, TellsTheCoordinatorFromReplicas) {
  const ScratchFolder folder;
  const TlsFiles one = make_certificate(folder.path(), "one");
  const TlsFiles two = make_certificate_of(folder.path(), "two", "one");
  const TlsFiles coordinator = make_certificate_of(
      folder.path(), "three", "one", PeerRole::kCoordinator);
  const Security to_coordinator = with_peer(one, PeerRole::kCoordinator);
  HandshakeOutcome right(mutual_tls(coordinator), to_coordinator);
  EXPECT_EQ(right.dialled, "");
  EXPECT_TRUE(right.talk());
  HandshakeOutcome posing(mutual_tls(two), to_coordinator);
  EXPECT_THAT(
      posing.dialled,
      HasSubstr("expected a certificate with the name sherd-coordinator"));
  EXPECT_TRUE(posing.server.ends.empty());
  HandshakeOutcome posing_as_replica(mutual_tls(one), mutual_tls(coordinator));
  EXPECT_THAT(
      posing_as_replica.refused(),
      HasSubstr("expected a certificate with the name sherd-replica"));
  EXPECT_TRUE(posing_as_replica.server.ends.empty());
}

TEST(MutualTls, RefusesAnEncryptedKeyAndAsksNobodyForItsPassphrase) {
  const ScratchFolder folder;
  const TlsFiles files = make_certificate(folder.path(), "one");
  testing::encrypt_key(files.key, "open sesame");
  // Somebody who is asked at stdin knows it.
  int ends[2] = {-1, -1};
  ASSERT_EQ(::pipe2(ends, O_CLOEXEC), 0);
  const Descriptor in(ends[0]);
  const Descriptor out(ends[1]);
  ASSERT_EQ(::write(out.get(), "open sesame\n", 12), 12);
  const Descriptor before(::dup(STDIN_FILENO));
  ::dup2(in.get(), STDIN_FILENO);
  Loop loop;
  EXPECT_THAT(
      error_of([&] { TestServer(loop, {.security = mutual_tls(files)}); }),
      HasSubstr("unencrypted key in PEM form at " + files.key));
  ::dup2(before.get(), STDIN_FILENO);
}

TEST(MutualTls, RefusesFilesThatAreNone) {
  const ScratchFolder folder;
  const TlsFiles good = make_certificate(folder.path(), "one");
  const TlsFiles other = make_certificate(folder.path(), "two");
  const std::string junk = folder.file("junk.pem", "junk");
  const std::string none = folder.path() + "/none.pem";
  struct Case {
    TlsFiles files;
    std::string expected;
  };
  const std::vector<Case> cases = {
      {{junk, good.key, good.authority},
       "a certificate in PEM form at " + junk},
      {{none, good.key, good.authority},
       "a certificate in PEM form at " + none},
      {{good.certificate, junk, good.authority}, "key in PEM form at " + junk},
      {{good.certificate, other.key, good.authority}, other.key},
      {{good.certificate, good.key, none}, "authority's certificate"}};
  Loop loop;
  for (const Case& one : cases) {
    EXPECT_THAT(
        error_of([&] {
          const TestServer s(loop, {.security = mutual_tls(one.files)});
        }),
        HasSubstr(one.expected));
  }
  EXPECT_THAT(
      error_of([] { mutual_tls({"a", "", "c"}); }), HasSubstr("key \"\""));
}

}  // namespace
}  // namespace sherd::net
