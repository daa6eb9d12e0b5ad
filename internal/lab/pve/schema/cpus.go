package schema

import "strings"

// cpuModels are the CPU models a VM may name, as GET
// /nodes/{node}/capabilities/qemu/cpu listed them.
var cpuModels = strings.Fields(`
486 Broadwell Broadwell-IBRS Broadwell-noTSX Broadwell-noTSX-IBRS Cascadelake-Server Cascadelake-Server-noTSX Cascadelake-Server-v2
Cascadelake-Server-v4 Cascadelake-Server-v5 ClearwaterForest Conroe Cooperlake Cooperlake-v2 EPYC EPYC-Genoa EPYC-Genoa-v2 EPYC-IBPB
EPYC-Milan EPYC-Milan-v2 EPYC-Milan-v3 EPYC-Rome EPYC-Rome-v2 EPYC-Rome-v3 EPYC-Rome-v4 EPYC-Rome-v5 EPYC-Turin EPYC-v3 EPYC-v4 EPYC-v5
GraniteRapids GraniteRapids-v2 GraniteRapids-v3 Haswell Haswell-IBRS Haswell-noTSX Haswell-noTSX-IBRS Icelake-Client Icelake-Client-noTSX
Icelake-Server Icelake-Server-noTSX Icelake-Server-v3 Icelake-Server-v4 Icelake-Server-v5 Icelake-Server-v6 Icelake-Server-v7 IvyBridge
IvyBridge-IBRS KnightsMill Nehalem Nehalem-IBRS Opteron_G1 Opteron_G2 Opteron_G3 Opteron_G4 Opteron_G5 Penryn SandyBridge SandyBridge-IBRS
SapphireRapids SapphireRapids-v2 SapphireRapids-v3 SapphireRapids-v4 SierraForest SierraForest-v2 SierraForest-v3 Skylake-Client
Skylake-Client-IBRS Skylake-Client-noTSX-IBRS Skylake-Client-v4 Skylake-Server Skylake-Server-IBRS Skylake-Server-noTSX-IBRS
Skylake-Server-v4 Skylake-Server-v5 Westmere Westmere-IBRS athlon core2duo coreduo host kvm32 kvm64 max pentium pentium2 pentium3 phenom
qemu32 qemu64 x86-64-v2 x86-64-v2-AES x86-64-v3 x86-64-v4
`)
