// SPDX-License-Identifier: Apache-2.0
//
// The status page: HTML without scripts, so that nothing a replica sends can run.
#include <cmath>
#include <sstream>
#include <string>

#include "base/check.h"
#include "base/printable.h"
#include "ft/coordinator/status.h"

namespace sherd::ft {
namespace {

constexpr const char* kHead = R"(<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="refresh" content="2">
<title>sherd</title>
<style>
:root { color-scheme: light dark; --ink: #1b1f24; --dim: #667; --line: #d8dce2;
  --back: #fff; --card: #f5f6f8; --good: #197a3d; --warn: #a15c00; --bad: #b3261e; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6e8eb; --dim: #99a;
  --line: #3a3f46; --back: #16181c; --card: #1f2227; --good: #5cc98a;
  --warn: #e3a24a; --bad: #f2867f; } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink);
  background: var(--back); margin: 2rem auto; max-width: 64rem; padding: 0 1rem; }
h1 { font-size: 1.3rem; } h2 { font-size: 1.05rem; margin-top: 2rem; }
.cards { display: flex; flex-wrap: wrap; gap: .75rem; }
.card { flex: 1 0 auto; background: var(--card); border-radius: .5rem; padding: .6rem 1rem; }
.card b { display: block; font-size: 1.35rem; font-weight: 600; }
.card span, .dim { color: var(--dim); }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; }
th, td { text-align: left; padding: .35rem .75rem .35rem 0;
  border-bottom: 1px solid var(--line); vertical-align: top; }
th { color: var(--dim); font-weight: 500; }
.good { color: var(--good); } .warn { color: var(--warn); }
.bad { color: var(--bad); } code { font-size: .9em; }
.complaint { border-left: .25rem solid var(--bad); padding: .5rem 1rem;
  background: var(--card); }
</style></head><body>
)";

// "3.2 s", "5 min", "2.1 h".
std::string span_of(double span_s) {
  const auto rounded = [](double value) {
    return value < 10 ? std::round(value * 10) / 10 : std::round(value);
  };
  if (span_s < 120) {
    return str(rounded(span_s), " s");
  }
  if (span_s < 7200) {
    return str(rounded(span_s / 60), " min");
  }
  return str(rounded(span_s / 3600), " h");
}

void card(std::ostream& out, const std::string& value, const char* name) {
  out << "<div class=\"card\"><b>" << value << "</b><span>" << name
      << "</span></div>\n";
}

const char* colour_of(const ReplicaStatus& one) {
  if (one.state == "member") {
    return one.slow ? "warn" : "good";
  }
  return one.state == "hangs" || one.state == "lost" || one.state == "fenced"
      ? "bad"
      : "warn";
}

void cards(std::ostream& out, const RunStatus& status) {
  out << "<div class=\"cards\">\n";
  card(out, std::to_string(status.canonical.step), "committed step");
  card(
      out, str(std::round(status.steps_per_s * 100) / 100), "steps per second");
  card(out, span_of(status.since_commit_s), "since the last commit");
  card(
      out,
      status.effective ? str(std::round(*status.effective * 1000) / 10, " %")
                       : "-",
      "effective training time");
  card(
      out, str(status.epoch.term, ".", status.epoch.number),
      html_escaped("epoch, " + status.stage).c_str());
  card(out, std::to_string(status.samples), "samples");
  out << "</div>\n";
}

void replicas(std::ostream& out, const RunStatus& status) {
  out << "<h2>Replicas</h2><div class=\"scroll\"><table><tr><th>Replica</th>"
         "<th>State</th><th>Since</th><th>Step</th><th>Lag</th><th>Does</th>"
         "<th>Address</th></tr>\n";
  for (const auto& one : status.replicas) {
    out << "<tr><td>" << one.replica << "</td><td class=\"" << colour_of(one)
        << "\">" << html_escaped(one.state) << (one.slow ? ", slow" : "")
        << "</td><td>" << span_of(one.since_s) << "</td><td>";
    if (one.held) {
      out << one.held->step;
    } else {
      out << '-';
    }
    out << "</td><td>" << one.lag << "</td><td>" << html_escaped(one.activity)
        << "</td><td><code>" << html_escaped(one.address)
        << "</code></td></tr>\n";
  }
  out << "</table></div>\n";
}

// Ranks that wait or stand still; ranks of a step that makes progress are not shown.
bool stands(const RankActivity& one) {
  return (one.standing > std::chrono::seconds(1) && one.progress.waits_for) ||
      silence_of(one.progress) > Duration(0);
}

void waits(std::ostream& out, const RunStatus& status) {
  out << "<h2>Who waits for whom</h2>\n";
  bool any = false;
  for (const auto& replica : status.replicas) {
    for (const auto& one : replica.ranks) {
      if (stands(one)) {
        out << (any ? "" : "<ul>\n") << "<li>Replica " << replica.replica
            << " rank " << one.progress.rank << ' '
            << html_escaped(text_of(one)) << ", since "
            << span_of(seconds(one.standing)) << "</li>\n";
        any = true;
      }
    }
  }
  out << (any ? "</ul>\n" : "<p class=\"dim\">Nobody.</p>\n");
}

void failures(std::ostream& out, const RunStatus& status) {
  out << "<h2>Last failures</h2>\n";
  if (status.failures.empty()) {
    out << "<p class=\"dim\">None.</p>\n";
    return;
  }
  out << "<div class=\"scroll\"><table><tr><th>When</th><th>Culprit</th>"
         "<th>Cause</th></tr>\n";
  for (const auto& one : status.failures) {
    out << "<tr><td>" << span_of(one.ago_s) << " ago</td><td>"
        << html_escaped(one.culprit) << "</td><td>" << html_escaped(one.cause)
        << "</td></tr>\n";
  }
  out << "</table></div>\n";
}

void counters(std::ostream& out, const RunStatus& status) {
  out << "<h2>Counts</h2><div class=\"scroll\"><table>\n";
  for (const auto& [name, value] : status.counters) {
    out << "<tr><td>" << html_escaped(name) << "</td><td>" << value
        << "</td></tr>\n";
  }
  out << "</table></div>\n";
}

}  // namespace

std::string html_of(const RunStatus& status) {
  std::ostringstream out;
  out << kHead << "<h1>Run <code>" << run_name(status.run)
      << "</code></h1>\n<p class=\"dim\">Coordinator up for "
      << span_of(status.up_s) << "; longest time between two commits "
      << span_of(status.longest_gap_s)
      << ". <a href=\"/metrics\">metrics</a>, <a href=\"/status.json\">JSON</a>"
         "</p>\n";
  if (!status.complaint.empty()) {
    out << "<p class=\"complaint bad\">" << html_escaped(status.complaint)
        << "</p>\n";
  }
  cards(out, status);
  replicas(out, status);
  waits(out, status);
  failures(out, status);
  counters(out, status);
  out << "</body></html>\n";
  return out.str();
}

}  // namespace sherd::ft
