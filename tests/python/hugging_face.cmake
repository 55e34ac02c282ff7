# SPDX-License-Identifier: Apache-2.0
# Packages of Hugging Face, which scripts/setup installs where it can. To import them
# takes most of the time.
sherd_add_python_test(transformers 2 SOAK 4)
sherd_add_python_test(peft SOAK 2)
sherd_add_python_test(accelerate SOAK 2)
foreach(case trainer accelerate_example)
  add_test(NAME python.${case}
    COMMAND ${SHERD_NICE} ${SHERD_PYTHON} ${CMAKE_CURRENT_SOURCE_DIR}/${case}_test.py
      ${package} $<TARGET_FILE:sherd> ${CMAKE_BINARY_DIR}/tests/python.${case})
endforeach()

# examples/python, by launcher and by name.
foreach(case torchrun sherd_run train_lora train_trainer)
  add_test(NAME python.examples.${case}
    COMMAND ${SHERD_NICE} ${SHERD_PYTHON} ${CMAKE_CURRENT_SOURCE_DIR}/examples_test.py
      ${case} ${package} $<TARGET_FILE:sherd>)
  list(APPEND examples python.examples.${case})
endforeach()
set(soak python.transformers.4 python.peft.2 python.trainer python.accelerate.2 python.accelerate_example
  python.examples.sherd_run python.examples.train_lora python.examples.train_trainer)
set_tests_properties(python.transformers.2 ${soak} ${examples}
  PROPERTIES TIMEOUT 1000 COST 100 LABELS multiproc SKIP_RETURN_CODE 77
  ENVIRONMENT OMP_NUM_THREADS=1)
set_tests_properties(${soak} PROPERTIES LABELS slow)
