# SPDX-License-Identifier: Apache-2.0
# What `cmake --install` leaves for readers: the licence, the documents with the
# examples that they link to, and manual pages and shell completions of the command. The last two are made while
# installing, from the help of the command, so that they fit what is installed.
install(FILES ${CMAKE_SOURCE_DIR}/LICENSE ${CMAKE_SOURCE_DIR}/README.md
  ${CMAKE_SOURCE_DIR}/CHANGELOG.md ${CMAKE_SOURCE_DIR}/CONTRIBUTING.md
  DESTINATION ${CMAKE_INSTALL_DOCDIR})
install(DIRECTORY ${CMAKE_SOURCE_DIR}/examples/python
  DESTINATION ${CMAKE_INSTALL_DOCDIR}/examples)
install(DIRECTORY ${CMAKE_SOURCE_DIR}/docs DESTINATION ${CMAKE_INSTALL_DOCDIR})
if(SHERD_TOOLS)
  set(command_docs ${CMAKE_BINARY_DIR}/command_docs)
  install(CODE "
    file(REMOVE_RECURSE \"${command_docs}\")
    execute_process(COMMAND \"${SHERD_PYTHON}\"
      \"${CMAKE_SOURCE_DIR}/scripts/command_docs.py\" \"$<TARGET_FILE:sherd>\"
      \"${command_docs}\" OUTPUT_QUIET COMMAND_ERROR_IS_FATAL ANY)")
  install(DIRECTORY ${command_docs}/share/ DESTINATION ${CMAKE_INSTALL_DATADIR})
endif()
