/* The page and the API description as bytes of the program: the assembler reads the files, nothing else is needed. CMake
 * gives this file's folder as the include path and rebuilds it when one of them changes. */
#include "serve/assets.h"

#define EMBED(name, file)                                                                                                          \
    __asm__(".section .rodata\n"                                                                                                   \
            ".global " #name "\n" #name ":\n"                                                                                      \
            ".incbin \"" LK_SERVE_DIR "/" file "\"\n"                                                                              \
            ".global " #name "_end\n" #name "_end:\n"                                                                              \
            ".byte 0\n"                                                                                                            \
            ".balign 8\n"                                                                                                          \
            ".global " #name "_size\n" #name "_size:\n"                                                                            \
            ".quad " #name "_end - " #name "\n"                                                                                    \
            ".text\n")

EMBED(lk_page_html, "page.html");
EMBED(lk_openapi_json, "openapi.json");
