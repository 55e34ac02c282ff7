// SPDX-License-Identifier: Apache-2.0
//
// c10d's window, if its headers have one (2.14), over a ShmWindow. Thread rule: as ShmWindow.
#pragma once

#include "c10d_shm/newer_c10d.h"

#ifdef C10D_BACKEND_HAS_WINDOW

#include <memory>
#include <torch/csrc/distributed/c10d/Window.hpp>
#include "c10d_shm/window.h"

namespace sherd::c10d_shm {

c10::intrusive_ptr<c10d::Window> make_c10d_window(
    std::shared_ptr<ShmWindow> window);

}  // namespace sherd::c10d_shm
#endif
