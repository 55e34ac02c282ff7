// SPDX-License-Identifier: Apache-2.0
#include "ft/wire/printable_messages.h"

#include <string>
#include <vector>
#include "base/printable.h"

namespace sherd::ft {
namespace {

void clean(std::string& text) { text = printable(text, kShownBytesMax); }

void clean(std::vector<RankAddress>& addresses) {
  for (auto& address : addresses) {
    clean(address.host);
  }
}

void clean(TrainingProgress& progress) {
  if (progress.place) {
    clean(progress.place->unit);
  }
}

}  // namespace

Report with_printable_texts(Report report) {
  if (report.suspicion) {
    clean(report.suspicion->reason);
  }
  if (report.bad_gradients) {
    clean(report.bad_gradients->fault.reason);
  }
  clean(report.addresses);
  clean(report.progress);
  for (auto& rank : report.ranks) {
    clean(rank);
  }
  return report;
}

RunView with_printable_texts(RunView view) {
  clean(view.fenced);
  for (auto& peer : view.peers) {
    clean(peer.addresses);
  }
  return view;
}

}  // namespace sherd::ft
