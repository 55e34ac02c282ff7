// SPDX-License-Identifier: Apache-2.0
#include "ft/wire/codec.h"

#include <memory>

#include "ft/wire/report_stream.h"
#include "ft/wire/view_stream.h"
#include "net/bytes.h"

namespace sherd::ft {

std::string bytes_of(const Report& report) {
  return ReportWriter().bytes_of(report);
}

std::string bytes_of(const RunView& view) {
  ToldView told;
  return ViewWriter().bytes_for(told, std::make_shared<const RunView>(view));
}

Result<Report> report_of(std::string_view bytes) {
  ReportReader reader;
  if (auto status = reader.read(bytes); !status.ok()) {
    return status;
  }
  return reader.report();
}

Result<RunView> run_view_of(std::string_view bytes) {
  ViewReader reader;
  if (auto status = reader.read(bytes); !status.ok()) {
    return status;
  }
  return reader.view();
}

std::optional<std::uint16_t> other_version(std::string_view message) {
  net::ByteReader reader(message);
  const std::uint16_t version = reader.u16("the version");
  return reader.ok() && version != kWireVersion ? std::optional(version)
                                                : std::nullopt;
}

}  // namespace sherd::ft
