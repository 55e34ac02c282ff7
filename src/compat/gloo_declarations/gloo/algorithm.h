// SPDX-License-Identifier: Apache-2.0
// Stands in for gloo's header of this name, of which ProcessGroupGloo.hpp needs
// only the existence. See src/compat/gloo_declarations/README.md.
#pragma once
