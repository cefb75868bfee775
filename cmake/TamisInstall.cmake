# Install rules and the package that find_package(tamis) reads.
include(CMakePackageConfigHelpers)

set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/tamis)

install(TARGETS tamis_static tamis_shared EXPORT tamis
        LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR}
        ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(DIRECTORY ${PROJECT_SOURCE_DIR}/include/tamis DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} FILES_MATCHING PATTERN "*.h")
install(FILES ${PROJECT_SOURCE_DIR}/LICENSE DESTINATION ${CMAKE_INSTALL_DATAROOTDIR}/doc/tamis)
if(TAMIS_CLI)
  install(TARGETS tamis_cli RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
endif()

install(EXPORT tamis NAMESPACE tamis:: FILE tamisTargets.cmake DESTINATION ${package_dir})
configure_package_config_file(${PROJECT_SOURCE_DIR}/cmake/tamisConfig.cmake.in ${PROJECT_BINARY_DIR}/cmake/tamisConfig.cmake
                              INSTALL_DESTINATION ${package_dir} NO_SET_AND_CHECK_MACRO)
# Before 1.0 every minor version may break its users.
write_basic_package_version_file(${PROJECT_BINARY_DIR}/cmake/tamisConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/cmake/tamisConfig.cmake ${PROJECT_BINARY_DIR}/cmake/tamisConfigVersion.cmake
        DESTINATION ${package_dir})
