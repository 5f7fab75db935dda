/* Files that live in the binary (assets.S): the chat page and the API description. */
#ifndef LK_SERVE_ASSETS_H
#define LK_SERVE_ASSETS_H

#include <stddef.h>

extern const char lk_page_html[], lk_openapi_json[];
extern const size_t lk_page_html_size, lk_openapi_json_size;

#endif
