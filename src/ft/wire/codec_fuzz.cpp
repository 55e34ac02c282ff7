// SPDX-License-Identifier: Apache-2.0
//
// Decodes any bytes as a report, a view and a record: each is either refused with a sentence, or
// unchanged after it was encoded and decoded again. The same holds for the bytes of real messages
// of which some are damaged; undamaged ones are always accepted. Later messages of a connection are
// treated the same way. Nothing is thrown.
#include "ft/wire/codec.h"

#include <cstdint>
#include <memory>
#include <string>
#include "ft/wire/messages_testing.h"
#include "ft/wire/record_codec.h"
#include "ft/wire/report_stream.h"
#include "ft/wire/view_stream.h"
#include "support/round_trip.h"

namespace sherd::ft {
namespace {

using sherd::test::check_damaged;
using sherd::test::FuzzBytes;

// Returns whether it was accepted.
template <auto read, typename Write>
bool comes_again(const std::string& bytes, const Write& write) {
  const auto once = read(bytes);
  if (!once.ok()) {
    SHERD_ASSERT(!once.status().message().empty(), "no reason");
    return false;
  }
  const auto again = read(write(once.value()));
  SHERD_ASSERT(
      again.ok() && again.value() == once.value(), "not what was read");
  return true;
}

bool report_comes_again(const std::string& bytes) {
  return comes_again<report_of>(
      bytes, [](const Report& one) { return bytes_of(one); });
}
bool view_comes_again(const std::string& bytes) {
  return comes_again<run_view_of>(
      bytes, [](const RunView& one) { return bytes_of(one); });
}
Result<Record> lone_record_of(const std::string& bytes) {
  return record_of(bytes, {});
}
bool record_comes_again(const std::string& bytes) {
  return comes_again<lone_record_of>(
      bytes, [](const Record& one) { return bytes_of(one, {}); });
}

void check_bytes(const std::string& bytes) {
  (void)report_comes_again(bytes);
  (void)view_comes_again(bytes);
  (void)record_comes_again(bytes);
  (void)summary_of(bytes);
  (void)past_piece_of(bytes);
}

void check_messages(FuzzBytes input) {
  test::RandomMessages random(input.seed());
  check_damaged(bytes_of(random.report()), report_comes_again, input);
  check_damaged(bytes_of(random.view()), view_comes_again, input);
  check_damaged(bytes_of(random.record(), {}), record_comes_again, input);
}

// The second message of a connection encodes what has changed.
void check_streams(FuzzBytes input) {
  test::RandomMessages random(input.seed());
  ReportWriter reports;
  ReportReader reports_in;
  SHERD_ASSERT(reports_in.read(reports.bytes_of(random.report())).ok());
  check_damaged(
      reports.bytes_of(random.report()),
      [&](const std::string& bytes) { return reports_in.read(bytes).ok(); },
      input);
  ViewWriter views;
  ToldView told;
  ViewReader views_in;
  const auto view = [&] {
    auto one = random.view();
    one.fenced.clear();
    return views.bytes_for(told, std::make_shared<const RunView>(one));
  };
  SHERD_ASSERT(views_in.read(view()).ok());
  check_damaged(
      view(),
      [&](const std::string& bytes) { return views_in.read(bytes).ok(); },
      input);
}

}  // namespace
}  // namespace sherd::ft

// NOLINTNEXTLINE(readability-identifier-naming): libFuzzer's name.
extern "C" int LLVMFuzzerTestOneInput(
    const std::uint8_t* data, std::size_t size) {
  using namespace sherd::ft;  // NOLINT(google-build-using-namespace)
  // Decoded unchanged, and after a version.
  const std::string whole(data, data + size);
  check_bytes(whole);
  for (const auto version : {kLogVersionMin, kWireVersion, kLogVersion}) {
    check_bytes(sherd::test::with_version(version, whole));
  }
  check_messages(sherd::test::FuzzBytes({data, size}));
  check_streams(sherd::test::FuzzBytes({data, size}));
  return 0;
}
