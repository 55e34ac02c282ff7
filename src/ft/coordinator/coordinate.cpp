// SPDX-License-Identifier: Apache-2.0
#include <sherd/ft/coordinator.h>

#include <sys/resource.h>
#include <algorithm>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <memory>
#include <string>

#include "base/check.h"
#include "base/log.h"
#include "base/replace_file.h"
#include "base/signal_fd.h"
#include "base/status.h"
#include "ft/coordinator/coordinator_server.h"
#include "ft/coordinator/status_server.h"
#include "net/authentication.h"
#include "net/loop.h"
#include "net/security.h"

namespace sherd::ft {
namespace {

// How soon a signal is noticed.
constexpr Duration kPollInterval = std::chrono::milliseconds(100);
// A view carries the addresses of all replicas.
constexpr std::size_t kOrderBytesMax = std::size_t{64} << 20U;
// Connections that have not yet sent their greeting.
constexpr std::size_t kGreetingsMax = 4096;

// Each replica's connection takes a descriptor, and the log, the page and the loop take some more.
// With too few, the coordinator would wait forever for replicas that cannot connect.
Status allow_many_connections(int replicas) {
  rlimit files = {};
  if (::getrlimit(RLIMIT_NOFILE, &files) != 0) {
    return {};
  }
  const rlim_t needed = 32 + static_cast<rlim_t>(replicas);
  if (files.rlim_max < needed) {
    return {
        ErrorCode::kUnavailable,
        str("[ft] expected a limit of at least ", needed, " open files for ",
            replicas, " replicas, found ", files.rlim_max,
            "; raise it with `ulimit -n ", needed, "`")};
  }
  files.rlim_cur = files.rlim_max;
  (void)::setrlimit(RLIMIT_NOFILE, &files);
  return {};
}

void check(const CoordinateOptions& options) {
  using std::chrono::milliseconds;
  SHERD_CHECK(
      !options.log.empty(), "[ft] expected the path of a log, found none");
  SHERD_CHECK(
      options.replicas_min >= 1 && options.replicas_start >= 1,
      "[ft] expected 1 replica or more, found a minimum of ",
      options.replicas_min, " and ", options.replicas_start, " to start with");
  SHERD_CHECK(
      options.samples_multiple >= 1 && options.global_batch >= 0 &&
          options.global_batch % options.samples_multiple == 0,
      "[ft] expected a global batch of 0 or more that ",
      options.samples_multiple, " divides, found ", options.global_batch);
  SHERD_CHECK(
      options.samples_per_replica >= 1 &&
          (options.global_batch > 0 ||
           options.samples_per_replica % options.samples_multiple == 0),
      "[ft] expected 1 sample for each replica or more that ",
      options.samples_multiple, " divides, found ",
      options.samples_per_replica);
  // A replica reports every 250 ms.
  SHERD_CHECK(
      options.dead_after >= milliseconds(500),
      "[ft] expected replicas to be dead after 500 ms or more, found ",
      options.dead_after.count(), " ms");
  for (const auto time :
       {options.start_timeout, options.settle, options.join_timeout,
        options.hold_time, options.hang_after, options.first_hang_after,
        options.slow_after, options.reconnect_timeout, options.vote_timeout,
        options.left_out_min, options.first_report_timeout}) {
    SHERD_CHECK(
        time >= milliseconds(0), "[ft] expected times of 0 ms or more, found ",
        time.count());
  }
  SHERD_CHECK(
      options.left_out_max >= options.left_out_min,
      "[ft] expected replicas to be left out for at most ",
      options.left_out_min.count(), " ms or more, found ",
      options.left_out_max.count(), " ms");
  SHERD_CHECK(
      options.log_retry_max >= kLogRetryMin,
      "[ft] expected the log to be tried again after ", seconds(kLogRetryMin),
      " s or more, found ", seconds(options.log_retry_max), " s");
}

CoordinatorServerOptions service_options(const CoordinateOptions& options) {
  CoordinatorServerOptions service;
  service.address = net::parse_host_address(options.bind);
  service.listen.security = net::security_of(
      options.secret_file,
      {.certificate = options.tls_certificate,
       .key = options.tls_key,
       .authority = options.tls_authority});
  service.listen.connection.payload_bytes_max = kOrderBytesMax;
  // All replicas come back at once after a restart of the coordinator.
  service.listen.unfinished_max = kGreetingsMax;
  service.log = options.log;
  service.coordinator.run = net::random_number();
  service.coordinator.recovers = options.recover_from_replicas;
  service.coordinator.ended = options.run_has_ended;
  service.coordinator.replicas_min = options.replicas_min;
  service.coordinator.samples_per_replica = options.samples_per_replica;
  service.coordinator.samples_in_all = options.global_batch;
  service.coordinator.samples_multiple = options.samples_multiple;
  service.coordinator.replicas_start =
      std::max(options.replicas_start, options.replicas_min);
  service.coordinator.start_timeout = options.start_timeout;
  service.coordinator.settle = options.settle;
  service.coordinator.join_timeout = options.join_timeout;
  service.coordinator.hold_time = options.hold_time;
  service.coordinator.reconnect_timeout = options.reconnect_timeout;
  service.coordinator.vote_timeout = options.vote_timeout;
  service.coordinator.backoff = options.left_out_min;
  service.coordinator.backoff_max = options.left_out_max;
  service.first_report_timeout = options.first_report_timeout;
  service.log_retry_max = options.log_retry_max;
  service.detector.dead_after = options.dead_after;
  service.detector.soft_floor = options.slow_after;
  service.detector.hard_floor = options.hang_after;
  service.detector.first_floor = options.first_hang_after;
  return service;
}

class CoordinatorMain {
 public:
  explicit CoordinatorMain(const CoordinateOptions& options)
      : options_(options) {}

  // Runs the coordinator from start to end.
  Status run() {
    SHERD_RETURN_IF_FAILED(start());
    poll();
    loop_.run();
    return end_;
  }

 private:
  Status start() {
    const CoordinatorServerOptions service = service_options(options_);
    const auto folder = std::filesystem::absolute(options_.log).parent_path();
    std::error_code ignored;  // Opening the log reports the cause.
    std::filesystem::create_directories(folder, ignored);
    if (!options_.status.empty()) {
      SHERD_ASSIGN_OR_RETURN(
          page_, StatusServer::listen(options_.status, [this] {
            loop_.post([this] { show_status(); });
          }));
      log_info(str("[ft] status at http://", page_->address(), "/"));
    }
    SHERD_ASSIGN_OR_RETURN(
        service_,
        CoordinatorServer::start(loop_, service, [this](const Status& why) {
          end_ = why;
          loop_.stop();
        }));
    const std::string address = service_->address().text();
    log_info(
        str("[ft] coordinator at ", address, ", log '", options_.log, "'"));
    if (options_.ready_file.empty()) {
      return {};
    }
    remove_drafts(options_.ready_file);
    return replace_file(
        options_.ready_file,
        address + "\n" + (page_ ? page_->address() + "\n" : ""));
  }

  void poll() {
    if (const auto signals = signals_.take(); !signals.empty()) {
      log_info(str("[ft] coordinator ends: ", ::strsignal(signals.front())));
      loop_.stop();
      return;
    }
    timer_ = loop_.after(kPollInterval, [this] { poll(); });
  }

  void show_status() {
    if (service_) {
      page_->show(service_->status());
    }
  }

  const CoordinateOptions& options_;
  // They end the coordinator in order. SIGPIPE is ignored, since the reader of its messages may be
  // gone.
  const SignalFd signals_{SIGINT, SIGTERM};
  net::Loop loop_;
  std::unique_ptr<StatusServer> page_;
  std::unique_ptr<CoordinatorServer> service_;
  net::Timer timer_;
  Status end_;
};

}  // namespace

int coordinate(const CoordinateOptions& options) {
  check(options);
  Status end = allow_many_connections(options.replicas_start);
  if (end.ok()) {
    end = CoordinatorMain(options).run();
  }
  if (!end.ok()) {
    log_error(end.message());
  }
  return end.ok() ? 0 : 1;
}

}  // namespace sherd::ft
