// SPDX-License-Identifier: Apache-2.0
//
// Fault-tolerant training, for sherd/ft.py. The session calls the program back in begin_step() and
// finish_step() alone, on the thread that called these, and takes the GIL for it.
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>
#include <pybind11/functional.h>
#include <sherd/ft/replica_checkpoints.h>
#include <sherd/ft/replica_session.h>
#include "bindings.h"

namespace sherd::python {
namespace {

using ft::ReplicaCheckpoints;
using ft::ReplicaSession;
using ft::SessionOptions;
using ft::SessionTimeouts;
using ft::TrainingStep;

// A session with its checkpoints, if it has any: `state` is what replicas fetch, `saved` what
// checkpoints have of it.
class Session {
 public:
  Session(
      World world,
      const NamedParameters& parameters,
      CheckpointState state,
      CheckpointState saved,
      std::function<void(std::int64_t)> update,
      SessionOptions options,
      const std::string& folder,
      std::int64_t save_every,
      int keep_last)
      : world_(std::move(world)) {
    if (!folder.empty()) {
      checkpoints_.emplace(
          world_, std::move(saved),
          ft::ReplicaCheckpointOptions{
              .folder = folder,
              .save_every = save_every,
              .keep_last = keep_last});
      options.held = checkpoints_->load();
    }
    session_.emplace(
        world_, parameters, std::move(state), std::move(update), options);
  }
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  ReplicaSession& get() { return *session_; }

  // If something ends the save, for example an interruption, the step has begun all the same: the
  // next call saves, if that is still to be done, and returns this step.
  std::optional<TrainingStep> begin_step() {
    if (!begun_) {
      saved_ = false;
      begun_ = session_->begin_step();
    }
    if (begun_ && checkpoints_) {
      checkpoints_->save_if_due(*session_, *begun_);
    }
    return std::exchange(begun_, std::nullopt);
  }

  bool finish_step() {
    begun_.reset();
    saved_ = false;
    return session_->finish_step();
  }

  // What has failed is repeated by the next call.
  void close() {
    if (checkpoints_ && session_->state_is_known() && !saved_) {
      checkpoints_->save(*session_);
      saved_ = true;
    }
    begun_.reset();
    session_->close();
    if (checkpoints_) {
      saved_ = false;  // Unless it is known to be complete.
      checkpoints_->wait();
      saved_ = true;
    }
  }

 private:
  World world_;
  std::optional<ReplicaCheckpoints> checkpoints_;
  std::optional<ReplicaSession> session_;
  std::optional<TrainingStep> begun_;  // What begin_step() has yet to return.
  bool saved_ = false;                 // Whether close() has saved this state.
};

void bind_timeouts(py::module_& module) {
  py::class_<SessionTimeouts> timeouts(module, "SessionTimeouts");
  bind_seconds<&SessionTimeouts::leave>(timeouts, "leave");
  bind_seconds<&SessionTimeouts::connect>(timeouts, "connect");
  bind_seconds<&SessionTimeouts::link>(timeouts, "link");
  bind_seconds<&SessionTimeouts::fetch>(timeouts, "fetch");
  bind_seconds<&SessionTimeouts::snapshot>(timeouts, "snapshot");
  bind_seconds<&SessionTimeouts::siblings>(timeouts, "siblings");
  bind_seconds<&SessionTimeouts::linger>(timeouts, "linger");
}

void bind_options(py::module_& module) {
  py::enum_<ft::GradientPolicy>(module, "GradientPolicy")
      .value("give", ft::GradientPolicy::kGive)
      .value("leave_out", ft::GradientPolicy::kLeaveOut)
      .value("stop", ft::GradientPolicy::kStop);
  py::enum_<ft::LearningRateScaling>(module, "LearningRateScaling")
      .value("none", ft::LearningRateScaling::kNone)
      .value("linear", ft::LearningRateScaling::kLinear)
      .value("sqrt", ft::LearningRateScaling::kSquareRoot);
  using Options = SessionOptions;
  py::class_<Options>(module, "SessionOptions")
      .def_static("from_environment", &Options::from_environment, WithoutGil())
      .def_readwrite("coordinator", &Options::coordinator)
      .def_readwrite("replica", &Options::replica)
      .def_readwrite("replicas", &Options::replicas)
      .def_readwrite("host", &Options::host)
      .def_readwrite("secret_file", &Options::secret_file)
      .def_readwrite("tls_certificate", &Options::tls_certificate)
      .def_readwrite("tls_key", &Options::tls_key)
      .def_readwrite("tls_authority", &Options::tls_authority)
      .def_readwrite("config", &Options::config)
      .def_readwrite("samples_full", &Options::samples_full)
      .def_readwrite("non_finite_gradients", &Options::non_finite_gradients)
      .def_readwrite("outlier_gradients", &Options::outlier_gradients)
      .def_readwrite("norm_ratio_max", &Options::norm_ratio_max)
      .def_readwrite("warm_up", &Options::warm_up)
      .def_readwrite("digest_every", &Options::digest_every)
      .def_readwrite("timeouts", &Options::timeouts)
      .def_readwrite("sums_kept", &Options::sums_kept)
      .def_readwrite("sums_bytes_max", &Options::sums_bytes_max)
      .def_readwrite("fetch_bytes_per_s_max", &Options::fetch_bytes_per_s_max);
}

// [begin, end) of each span.
std::vector<std::pair<std::int64_t, std::int64_t>> spans_of(
    const TrainingStep& step) {
  std::vector<std::pair<std::int64_t, std::int64_t>> spans;
  for (const auto& span : step.samples) {
    spans.emplace_back(span.begin, span.end);
  }
  return spans;
}

void bind_step(py::module_& module) {
  py::class_<TrainingStep>(module, "TrainingStep")
      .def_readonly("step", &TrainingStep::step)
      .def_property_readonly("spans", &spans_of)
      .def_readonly("replica_samples", &TrainingStep::replica_samples)
      .def_readonly("replicas", &TrainingStep::replicas)
      .def_readonly("place", &TrainingStep::place)
      .def_readonly("warms_up", &TrainingStep::warms_up);
}

}  // namespace

void bind_ft(py::module_& module) {
  bind_timeouts(module);
  bind_options(module);
  bind_step(module);
  py::class_<Session>(module, "Session", DestroyedWithoutGil())
      .def(
          py::init<
              const World&, const NamedParameters&, const State&, const State&,
              std::function<void(std::int64_t)>, const SessionOptions&,
              const std::string&, std::int64_t, int>(),
          // It refers to the optimizers that the states have.
          py::keep_alive<1, 4>(), py::keep_alive<1, 5>(), WithoutGil())
      .def("begin_step", &Session::begin_step, WithoutGil())
      .def("last_backward", [](Session& self) { self.get().last_backward(); })
      .def("finish_step", &Session::finish_step, WithoutGil())
      .def(
          "other_work",
          [](Session& self, const std::function<void()>& work) {
            self.get().other_work(work);
          })
      .def_property_readonly(
          "step", [](Session& self) { return self.get().step(); })
      .def_property_readonly(
          "state_name", [](Session& self) { return self.get().state_name(); })
      .def_property_readonly(
          "samples_of_update",
          [](Session& self) { return self.get().samples_of_update(); })
      // Also called by handlers of signals.
      .def(
          "leave", [](Session& self) { self.get().leave(); },
          py::call_guard<py::gil_scoped_release>())
      .def("close", &Session::close, WithoutGil());
  module.def("learning_rate_factor", &ft::learning_rate_factor);
}

}  // namespace sherd::python
