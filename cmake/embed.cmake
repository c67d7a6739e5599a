# fathom_embed(TARGET FOLDER SYMBOL): links every ordinary file of FOLDER that a model loader may ask for into the
# binary, as `std::span<const fathom::EmbeddedFile> SYMBOL()` (src/serve/embedded_file.h).
function(fathom_embed target folder symbol)
  file(GLOB files CONFIGURE_DEPENDS ${folder}/*.json ${folder}/*.safetensors ${folder}/*.jinja)
  list(FILTER files EXCLUDE REGEX "\\.(index_of|tmp)\\.json$")
  set(asm "")
  set(declarations "")
  set(rows "")
  set(index 0)
  foreach(file ${files})
    get_filename_component(name ${file} NAME)
    string(APPEND asm ".global ${symbol}_begin_${index}\n.global ${symbol}_end_${index}\n.balign 64\n"
                      "${symbol}_begin_${index}:\n.incbin \"${file}\"\n${symbol}_end_${index}:\n.byte 0\n")
    string(APPEND declarations "extern const char ${symbol}_begin_${index}[];\nextern const char ${symbol}_end_${index}[];\n")
    string(APPEND rows "    {\"${name}\", {${symbol}_begin_${index}, static_cast<size_t>(${symbol}_end_${index} - ${symbol}_begin_${index})}},\n")
    math(EXPR index "${index} + 1")
  endforeach()
  set(base ${CMAKE_BINARY_DIR}/embedded/${symbol})
  file(CONFIGURE OUTPUT ${base}.S @ONLY CONTENT ".section .rodata\n${asm}.section .note.GNU-stack,\"\",@progbits\n")
  if(rows)
    set(body "  static const EmbeddedFile files[] = {\n${rows}  };\n  return files;\n")
  else()
    set(body "  return {};\n")
  endif()
  file(CONFIGURE OUTPUT ${base}.cc @ONLY CONTENT
"#include \"serve/embedded_file.h\"
extern \"C\" {
${declarations}}
namespace fathom {
std::span<const EmbeddedFile> ${symbol}() {
${body}}
}  // namespace fathom
")
  set_source_files_properties(${base}.S PROPERTIES OBJECT_DEPENDS "${files}")
  add_library(${target} STATIC ${base}.S ${base}.cc)
  target_include_directories(${target} PRIVATE ${CMAKE_SOURCE_DIR}/src)
endfunction()
