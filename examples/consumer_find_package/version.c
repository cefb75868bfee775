/* The C interface: which library is this? */
#include <stdio.h>
#include <tamis/tamis_c.h>

int main(void) {
  if (tamis_abi_version() != TAMIS_ABI_VERSION) return 1;
  printf("tamis %s, code 1 is %s\n", tamis_version(), tamis_code_name(TAMIS_INVALID_ARGUMENT));
  return 0;
}
