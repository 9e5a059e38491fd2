// A plan of one small layer, as `to_json` would write it: every fusion of lowering happens in it.
#pragma once

namespace ramet {

inline constexpr const char* kToyPlan = R"({"version":1,"name":"text",
"values":[{"id":0,"name":"tokens","rows":"tokens","width":1,"dtype":"i32"},
{"id":1,"name":"positions","rows":"tokens","width":1,"dtype":"i32"},
{"id":2,"name":"x","rows":"tokens","width":8,"dtype":"f32"},
{"id":3,"name":"h","rows":"tokens","width":8,"dtype":"f32"},
{"id":4,"name":"q","rows":"tokens","width":8,"dtype":"f32"},
{"id":5,"name":"k","rows":"tokens","width":4,"dtype":"f32"},
{"id":6,"name":"v","rows":"tokens","width":4,"dtype":"f32"},
{"id":7,"name":"qr","rows":"tokens","width":8,"dtype":"f32"},
{"id":8,"name":"a","rows":"tokens","width":8,"dtype":"f32"},
{"id":9,"name":"o","rows":"tokens","width":8,"dtype":"f32"},
{"id":10,"name":"x2","rows":"tokens","width":8,"dtype":"f32"},
{"id":11,"name":"g","rows":"logits","width":8,"dtype":"f32"},
{"id":12,"name":"logits","rows":"logits","width":16,"dtype":"f32"}],
"weights":[{"id":0,"name":"embed","shape":[16,8]},{"id":1,"name":"norm","shape":[8]},{"id":2,"name":"wq","shape":[8,8]},
{"id":3,"name":"wk","shape":[4,8]},{"id":4,"name":"wv","shape":[4,8]},{"id":5,"name":"bias","shape":[8]}],
"streams":[{"id":0,"name":"s","kv_heads":1,"head_dim":4,"v_dim":4,"window":0}],
"tables":{"rope":[1.0,0.5e-1]},
"ops":[{"kind":"embed","name":"e","inputs":[0],"outputs":[2],"weights":[0],"attrs":{}},
{"kind":"rms_norm","name":"n","inputs":[2],"outputs":[3],"weights":[1],"attrs":{"eps":1e-5,"offset":0}},
{"kind":"linear","name":"lq","inputs":[3],"outputs":[4],"weights":[2,5],"attrs":{}},
{"kind":"linear","name":"lk","inputs":[3],"outputs":[5],"weights":[3],"attrs":{}},
{"kind":"linear","name":"lv","inputs":[3],"outputs":[6],"weights":[4],"attrs":{}},
{"kind":"rope","name":"r","inputs":[4,1],"outputs":[7],"weights":[],"attrs":{"heads":2,"head_dim":4,"rotary_dim":4,"style":"half","table":"rope","factor":1}},
{"kind":"attention","name":"at","inputs":[7,5,6],"outputs":[8],"weights":[],"attrs":{"stream":0,"heads":2,"scale":0.5,"soft_cap":0.0,"causal":true}},
{"kind":"linear","name":"lo","inputs":[8],"outputs":[9],"weights":[2],"attrs":{}},
{"kind":"add","name":"ad","inputs":[2,9],"outputs":[10],"weights":[],"attrs":{}},
{"kind":"gather_rows","name":"ga","inputs":[10],"outputs":[11],"weights":[],"attrs":{}},
{"kind":"linear","name":"head","inputs":[11],"outputs":[12],"weights":[0],"attrs":{}}],
"outputs":{"logits":12}})";

}  // namespace ramet
