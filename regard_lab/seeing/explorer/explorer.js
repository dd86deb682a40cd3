/* sources 9c1d5052c34e8ac649b42a9dad43872931d693d965b3f1ad6347fff10a72d32c */
var ie=globalThis,Je=e=>e,_t=ie.trustedTypes,Ye=_t?_t.createPolicy("lit-html",{createHTML:e=>e}):void 0,ae="$lit$",D=`lit$${Math.random().toFixed(9).slice(2)}$`,le="?"+D,Tn=`<${le}>`,tt=document,mt=()=>tt.createComment(""),$t=e=>e===null||typeof e!="object"&&typeof e!="function",ce=Array.isArray,ns=e=>ce(e)||typeof e?.[Symbol.iterator]=="function",re=`[ 	
\f\r]`,ft=/<(?:(!--|\/[^a-zA-Z])|(\/?[a-zA-Z][^>\s]*)|(\/?$))/g,Xe=/-->/g,Ze=/>/g,X=RegExp(`>|${re}(?:([^\\s"'>=/]+)(${re}*=${re}*(?:[^ 	
\f\r"'\`<>=]|("|')|))|$)`,"g"),ts=/'/g,es=/"/g,os=/^(?:script|style|textarea|title)$/i,he=e=>(t,...s)=>({_$litType$:e,strings:t,values:s}),u=he(1),br=he(2),pr=he(3),wt=Symbol.for("lit-noChange"),p=Symbol.for("lit-nothing"),ss=new WeakMap,Z=tt.createTreeWalker(tt,129);function rs(e,t){if(!ce(e)||!e.hasOwnProperty("raw"))throw Error("invalid template strings array");return Ye!==void 0?Ye.createHTML(t):t}var is=(e,t)=>{let s=e.length-1,n=[],o,r=t===2?"<svg>":t===3?"<math>":"",i=ft;for(let l=0;l<s;l++){let a=e[l],c,d,h=-1,f=0;for(;f<a.length&&(i.lastIndex=f,d=i.exec(a),d!==null);)f=i.lastIndex,i===ft?d[1]==="!--"?i=Xe:d[1]!==void 0?i=Ze:d[2]!==void 0?(os.test(d[2])&&(o=RegExp("</"+d[2],"g")),i=X):d[3]!==void 0&&(i=X):i===X?d[0]===">"?(i=o??ft,h=-1):d[1]===void 0?h=-2:(h=i.lastIndex-d[2].length,c=d[1],i=d[3]===void 0?X:d[3]==='"'?es:ts):i===es||i===ts?i=X:i===Xe||i===Ze?i=ft:(i=X,o=void 0);let m=i===X&&e[l+1].startsWith("/>")?" ":"";r+=i===ft?a+Tn:h>=0?(n.push(c),a.slice(0,h)+ae+a.slice(h)+D+m):a+D+(h===-2?l:m)}return[rs(e,r+(e[s]||"<?>")+(t===2?"</svg>":t===3?"</math>":"")),n]},gt=class e{constructor({strings:t,_$litType$:s},n){let o;this.parts=[];let r=0,i=0,l=t.length-1,a=this.parts,[c,d]=is(t,s);if(this.el=e.createElement(c,n),Z.currentNode=this.el.content,s===2||s===3){let h=this.el.content.firstChild;h.replaceWith(...h.childNodes)}for(;(o=Z.nextNode())!==null&&a.length<l;){if(o.nodeType===1){if(o.hasAttributes())for(let h of o.getAttributeNames())if(h.endsWith(ae)){let f=d[i++],m=o.getAttribute(h).split(D),$=/([.?@])?(.*)/.exec(f);a.push({type:1,index:r,name:$[2],strings:m,ctor:$[1]==="."?Tt:$[1]==="?"?Et:$[1]==="@"?Ct:st}),o.removeAttribute(h)}else h.startsWith(D)&&(a.push({type:6,index:r}),o.removeAttribute(h));if(os.test(o.tagName)){let h=o.textContent.split(D),f=h.length-1;if(f>0){o.textContent=_t?_t.emptyScript:"";for(let m=0;m<f;m++)o.append(h[m],mt()),Z.nextNode(),a.push({type:2,index:++r});o.append(h[f],mt())}}}else if(o.nodeType===8)if(o.data===le)a.push({type:2,index:r});else{let h=-1;for(;(h=o.data.indexOf(D,h+1))!==-1;)a.push({type:7,index:r}),h+=D.length-1}r++}}static createElement(t,s){let n=tt.createElement("template");return n.innerHTML=t,n}};function et(e,t,s=e,n){if(t===wt)return t;let o=n!==void 0?s._$Co?.[n]:s._$Cl,r=$t(t)?void 0:t._$litDirective$;return o?.constructor!==r&&(o?._$AO?.(!1),r===void 0?o=void 0:(o=new r(e),o._$AT(e,s,n)),n!==void 0?(s._$Co??=[])[n]=o:s._$Cl=o),o!==void 0&&(t=et(e,o._$AS(e,t.values),o,n)),t}var St=class{constructor(t,s){this._$AV=[],this._$AN=void 0,this._$AD=t,this._$AM=s}get parentNode(){return this._$AM.parentNode}get _$AU(){return this._$AM._$AU}u(t){let{el:{content:s},parts:n}=this._$AD,o=(t?.creationScope??tt).importNode(s,!0);Z.currentNode=o;let r=Z.nextNode(),i=0,l=0,a=n[0];for(;a!==void 0;){if(i===a.index){let c;a.type===2?c=new rt(r,r.nextSibling,this,t):a.type===1?c=new a.ctor(r,a.name,a.strings,this,t):a.type===6&&(c=new Ot(r,this,t)),this._$AV.push(c),a=n[++l]}i!==a?.index&&(r=Z.nextNode(),i++)}return Z.currentNode=tt,o}p(t){let s=0;for(let n of this._$AV)n!==void 0&&(n.strings!==void 0?(n._$AI(t,n,s),s+=n.strings.length-2):n._$AI(t[s])),s++}},rt=class e{get _$AU(){return this._$AM?._$AU??this._$Cv}constructor(t,s,n,o){this.type=2,this._$AH=p,this._$AN=void 0,this._$AA=t,this._$AB=s,this._$AM=n,this.options=o,this._$Cv=o?.isConnected??!0}get parentNode(){let t=this._$AA.parentNode,s=this._$AM;return s!==void 0&&t?.nodeType===11&&(t=s.parentNode),t}get startNode(){return this._$AA}get endNode(){return this._$AB}_$AI(t,s=this){t=et(this,t,s),$t(t)?t===p||t==null||t===""?(this._$AH!==p&&this._$AR(),this._$AH=p):t!==this._$AH&&t!==wt&&this._(t):t._$litType$!==void 0?this.$(t):t.nodeType!==void 0?this.T(t):ns(t)?this.k(t):this._(t)}O(t){return this._$AA.parentNode.insertBefore(t,this._$AB)}T(t){this._$AH!==t&&(this._$AR(),this._$AH=this.O(t))}_(t){this._$AH!==p&&$t(this._$AH)?this._$AA.nextSibling.data=t:this.T(tt.createTextNode(t)),this._$AH=t}$(t){let{values:s,_$litType$:n}=t,o=typeof n=="number"?this._$AC(t):(n.el===void 0&&(n.el=gt.createElement(rs(n.h,n.h[0]),this.options)),n);if(this._$AH?._$AD===o)this._$AH.p(s);else{let r=new St(o,this),i=r.u(this.options);r.p(s),this.T(i),this._$AH=r}}_$AC(t){let s=ss.get(t.strings);return s===void 0&&ss.set(t.strings,s=new gt(t)),s}k(t){ce(this._$AH)||(this._$AH=[],this._$AR());let s=this._$AH,n,o=0;for(let r of t)o===s.length?s.push(n=new e(this.O(mt()),this.O(mt()),this,this.options)):n=s[o],n._$AI(r),o++;o<s.length&&(this._$AR(n&&n._$AB.nextSibling,o),s.length=o)}_$AR(t=this._$AA.nextSibling,s){for(this._$AP?.(!1,!0,s);t!==this._$AB;){let n=Je(t).nextSibling;Je(t).remove(),t=n}}setConnected(t){this._$AM===void 0&&(this._$Cv=t,this._$AP?.(t))}},st=class{get tagName(){return this.element.tagName}get _$AU(){return this._$AM._$AU}constructor(t,s,n,o,r){this.type=1,this._$AH=p,this._$AN=void 0,this.element=t,this.name=s,this._$AM=o,this.options=r,n.length>2||n[0]!==""||n[1]!==""?(this._$AH=Array(n.length-1).fill(new String),this.strings=n):this._$AH=p}_$AI(t,s=this,n,o){let r=this.strings,i=!1;if(r===void 0)t=et(this,t,s,0),i=!$t(t)||t!==this._$AH&&t!==wt,i&&(this._$AH=t);else{let l=t,a,c;for(t=r[0],a=0;a<r.length-1;a++)c=et(this,l[n+a],s,a),c===wt&&(c=this._$AH[a]),i||=!$t(c)||c!==this._$AH[a],c===p?t=p:t!==p&&(t+=(c??"")+r[a+1]),this._$AH[a]=c}i&&!o&&this.j(t)}j(t){t===p?this.element.removeAttribute(this.name):this.element.setAttribute(this.name,t??"")}},Tt=class extends st{constructor(){super(...arguments),this.type=3}j(t){this.element[this.name]=t===p?void 0:t}},Et=class extends st{constructor(){super(...arguments),this.type=4}j(t){this.element.toggleAttribute(this.name,!!t&&t!==p)}},Ct=class extends st{constructor(t,s,n,o,r){super(t,s,n,o,r),this.type=5}_$AI(t,s=this){if((t=et(this,t,s,0)??p)===wt)return;let n=this._$AH,o=t===p&&n!==p||t.capture!==n.capture||t.once!==n.once||t.passive!==n.passive,r=t!==p&&(n===p||o);o&&this.element.removeEventListener(this.name,this,n),r&&this.element.addEventListener(this.name,this,t),this._$AH=t}handleEvent(t){typeof this._$AH=="function"?this._$AH.call(this.options?.host??this.element,t):this._$AH.handleEvent(t)}},Ot=class{constructor(t,s,n){this.element=t,this.type=6,this._$AN=void 0,this._$AM=s,this.options=n}get _$AU(){return this._$AM._$AU}_$AI(t){et(this,t)}},as={M:ae,P:D,A:le,C:1,L:is,R:St,D:ns,V:et,I:rt,H:st,N:Et,U:Ct,B:Tt,F:Ot},En=ie.litHtmlPolyfillSupport;En?.(gt,rt),(ie.litHtmlVersions??=[]).push("3.3.3");var ls=(e,t,s)=>{let n=s?.renderBefore??t,o=n._$litPart$;if(o===void 0){let r=s?.renderBefore??null;n._$litPart$=o=new rt(t.insertBefore(mt(),r),r,void 0,s??{})}return o._$AI(e),o};var ue={light:["#ffffff","#cfdff2","#7fabdf","#2c68b4","#0b2a5b"],dark:["#14181f","#1d3252","#2f5c9b","#6ba3e8","#d3e6ff"]},fe={light:["#ffffff","#fbd9c9","#ee9a77","#c1452c","#6b1310"],dark:["#14181f","#4a2a22","#96452f","#e4795a","#ffd5c7"]},cs={light:{ink:"#1d2430",faint:"#5b6472",line:"#d5dae2",paper:"#ffffff",panel:"#f6f7f9",accent:"#1a5fb4","on-accent":"#ffffff",unseen:"#e4e4e4"},dark:{ink:"#e7eaf0",faint:"#a4adbb",line:"#3b4350",paper:"#14181f",panel:"#1d232c",accent:"#8ab8ff","on-accent":"#10151c",unseen:"#3a3f47"},both:{followed:"#e8441f",flying:"#b93213"}};var hs=cs.both.followed,ds={light:{weight:ue.light,against:fe.light},dark:{weight:ue.dark,against:fe.dark}};var Nt={linear:"0 to 1",root:"square root: small weights are visible",largest:"0 to the largest weight of each row"},us={};function fs(){let{theme:e}=document.documentElement.dataset,t=e==="dark"||e!=="light"&&matchMedia("(prefers-color-scheme: dark)").matches?"dark":"light";return us[t]??=Object.fromEntries(Object.entries(ds[t]).map(([s,n])=>[s,Cn(n)])),us[t]}function Cn(e){let t=e.map(s=>[1,3,5].map(n=>parseInt(s.slice(n,n+2),16)));return Uint8Array.from({length:768},(s,n)=>{let o=Math.floor(n/3)/255*(e.length-1),r=Math.min(Math.floor(o),e.length-2),[i,l]=[t[r][n%3],t[r+1][n%3]];return i+(l-i)*(o-r)})}function bt(e){return e>=1?255:e>0?Math.floor(e*256):0}function ms(e,t,s){return t==="root"?Math.sqrt(e):t==="largest"?s>0?e/s:0:e}function Ft(){let{weight:e}=fs(),t=new Uint32Array(256),s=new Uint8Array(t.buffer);for(let n=0;n<256;n+=1)s.set(e.subarray(3*n,3*n+3),4*n),s[4*n+3]=255;return t}function Lt(e){let{weight:t,against:s}=fs(),n=3*bt(Math.abs(e));return(e<0?s:t).subarray(n,n+3)}function It(e){return`rgb(${Lt(e)})`}function it(e,t){return at(t?e/t:0)}function at(e){let t=Lt(e);return`background:rgb(${t});color:${On(...t)?"#fff":"#000"}`}function On(e,t,s){let n=o=>o<=10?o/3294.6:((o/255+.055)/1.055)**2.4;return .2126*n(e)+.7152*n(t)+.0722*n(s)<.179}function O(e,t,s=()=>!0){let n=[];for(let o=0;o<e.length;o+=1){if(n.length===t&&!(e[o]>e[n[t-1]])||!s(o))continue;let r=n.length;for(;r>0&&e[o]>e[n[r-1]];)r-=1;n.splice(r,0,o),n.length>t&&n.pop()}return n}var Nn=48;function $s(e=document){let t=JSON.parse(e.getElementById("regard-header").textContent);return new F(t,e.getElementById("regard-arrays").textContent)}var F=class{constructor(t,s){this.header=t,this.arrays=s,this.kept=new Map}async bytes([t,s]){let n=atob(this.arrays.slice(t,t+s)),o=new Uint8Array(n.length);for(let i=0;i<n.length;i+=1)o[i]=n.charCodeAt(i);let r=new Blob([o]).stream().pipeThrough(new DecompressionStream("deflate"));return new Uint8Array(await new Response(r).arrayBuffer())}words(t){let{texts:s}=this.header;return{rows:s[t.rows],columns:s[t.columns]}}head(t,s,n){let o=`${t}/${s}/${n}`,r=this.kept.get(o);return r?this.kept.delete(o):r=n==="mean"?this.#e(t,s):this.#t(t,s,n),this.kept.set(o,r),this.kept.size>Nn&&this.kept.delete(this.kept.keys().next().value),r}async#t(t,s,n){let o=this.header.attentions[t],[,,r,i]=o.shape;if(o.exact){let c=await this.bytes(o.exact[s][n]);return new B(new Float32Array(c.buffer),r,i,!0)}let l=await this.bytes(o.bytes[s][n]),a=new Float32Array(l.length);for(let c=0;c<l.length;c+=1)a[c]=Fn[l[c]];return new B(a,r,i,!1)}async#e(t,s){let n=this.header.attentions[t].shape[1],o=[];for(let i=0;i<n;i+=1)o.push(await this.#t(t,s,i));let r=new Float32Array(o[0].values.length);for(let i of o)for(let l=0;l<r.length;l+=1)r[l]+=i.values[l]/n;return new B(r,o[0].rows,o[0].columns,o[0].exact)}async thumbnails(t){let{shape:s,place:n}=this.header.attentions[t].thumbnails;return{rows:s[0],columns:s[1],bytes:await this.bytes(n)}}},Fn=Float32Array.from({length:256},(e,t)=>(t/255)**2),B=class{constructor(t,s,n,o){Object.assign(this,{values:t,rows:s,columns:n,exact:o})}row(t){return this.values.subarray(t*this.columns,(t+1)*this.columns)}at(t,s){return this.values[t*this.columns+s]}entropy(t){let s=0;for(let n of this.row(t))n>0&&(s-=n*Math.log(n));return s}get received(){return this.sums??=this.#t(),this.sums}#t(){let t=new Float32Array(this.columns);for(let s=0,n=0;s<this.rows;s+=1)for(let o=0;o<this.columns;o+=1,n+=1)t[o]+=this.values[n];return t}links(t,s,n){let o=this.row(t),r=O(o,n),i=0;for(let c of o)i+=c;let l=[],a=0;for(let c of r){if(!(o[c]>0)||a>=s*i-1e-9)break;a+=o[c],l.push({key:c,weight:o[c]})}return{links:l,hidden:Math.max(0,i-a)}}};var ws=48,V=class extends F{constructor(t,s,n,o=null){let{header:r,arrays:i}=t,{model:l}=r,a=l.kinds.map(m=>new me(m,n.attention[m.kind])),{texts:c,text:d,finished:h}=n,f=c.target?`${s.source} \u2192 ${d}`:s.source;super({...r,title:f,texts:c,attentions:a,explained:{},written:l.written,changes:l.follows&&In(l,n,o?.answer??n)},i),Object.assign(this,{stored:t,given:s,answer:n,base:o}),this.header.chosen=this.#t(),o&&(Object.assign(this,{second:o}).header.second={said:"the model as trained",header:o.header,matched:Ln(c,o.answer.texts)}),h===!1&&(this.header.notes=[...r.notes,"The model does not end this text."])}#t(){let{model:t,texts:s}=this.header;if(t.written!=="target")return Math.max(s[t.written||"text"].length-1,0);if(t.asked?.source===this.given.source&&s.target[t.asked.place]===t.asked.word)return t.asked.place;let n=s.target.flatMap((o,r)=>t.pronouns.includes(o.toLowerCase())?[r]:[]);return n.length===1?n[0]:0}others(t){let{model:s,texts:n}=this.header,o=n.target?.[t];return t!==this.header.chosen||!o?null:s.asked?.place===t&&s.asked.word===o&&s.asked.source===this.given.source?s.asked.others:s.pronouns.includes(o.toLowerCase())?s.pronouns.filter(r=>r!==o.toLowerCase()):null}explain(t,{lenses:s,changes:n}){let{header:o,answer:r}=this;s.length&&(o.explained[t]=s),o.changes&&n.forEach((i,l)=>o.changes.erased[r.erasable[l]]={...gs,...i})}measure(t,{kinds:s,...n}){this.effects={place:t,...n};for(let o of this.header.attentions){let{heads:r,layers:i}=s[o.kind]??{};o.layers=i,r?o.statistics.effect=r:delete o.statistics.effect}}head(t,s,n){let{shape:[,o,r,i],weights:l}=this.header.attentions[t],a=r*i,c=new Float32Array(a);for(let d=n==="mean"?0:n,h=n==="mean"?o:n+1;d<h;d+=1)for(let f=0,m=(s*o+d)*a;f<a;f+=1)c[f]+=l[m+f]/(n==="mean"?o:1);return new B(c,r,i,!0)}async thumbnails(t){let{shape:[s,n,o,r],weights:i}=this.header.attentions[t],[l,a]=[Math.min(o,ws),Math.min(r,ws)],c=new Uint8Array(s*n*l*a);for(let d=0;d<i.length;d+=1){let h=d%r,f=Math.floor(d/r)%o,$=(Math.floor(d/r/o)*l+Math.floor(f*l/o))*a+Math.floor(h*a/r);c[$]=Math.max(c[$],Math.round(255*Math.sqrt(i[d])))}return await new Promise(requestAnimationFrame),{rows:l,columns:a,bytes:c}}};function Ln(e,t){return Object.fromEntries(Object.entries(e).map(([s,n])=>{let o=t[s],r=Array.from({length:n.length+1},()=>new Uint16Array(o.length+1)),i=[[],[]];for(let l=n.length-1;l>=0;l-=1)for(let a=o.length-1;a>=0;a-=1)r[l][a]=n[l]===o[a]?r[l+1][a+1]+1:Math.max(r[l+1][a],r[l][a+1]);for(let[l,a]=[0,0];l<n.length&&a<o.length;)n[l]===o[a]?(i[0].push(l++),i[1].push(a++)):r[l+1][a]>=r[l][a+1]?l+=1:a+=1;return[s,i]}))}var gs={probabilities:[],likeliest:[],translation:null,similarities:[]};function In({follows:e},t,s){let n=(r,i=r)=>({...gs,...i,translation:r.finished===void 0?[]:r.texts.target.slice(0,-1)}),o={similarities:s.texts[s.texts.target?"target":"text"].map(()=>1)};return{follows:e,unchanged:{...n(s),...o},now:t===s?null:{...n(t,t.against),...o},erased:{}}}var me=class{constructor(t,{shape:s,weights:n}){Object.assign(this,{links:{},says:"",...t,shape:s,weights:n})}get sums(){let[,,,t]=this.shape,{weights:s}=this;for(let n=0;n<s.length;n+=t)if(Math.abs(s.subarray(n,n+t).reduce((o,r)=>o+r,0)-1)>.01)return"Rows of words that may look at no word sum to 0.";return""}get statistics(){return this.measured??=this.#t()}#t(){let[t,s,n,o]=this.shape,r=[this.rows,this.columns].sort().join(),i=this.rows===this.columns||r==="read,target",l={entropy:[],first:[],received:[],...i?{distance:[]}:{}};for(let a=0;a<t;a+=1){for(let c of Object.values(l))c.push([]);for(let c=0;c<s;c+=1){let d=new Float64Array(o),[h,f,m]=[0,0,0];for(let $=0;$<n;$+=1)for(let w=0;w<o;w+=1){let x=this.weights[((a*s+c)*n+$)*o+w];x>0&&(h-=x*Math.log(x)/n),w===0&&(f+=x/n),m+=x*Math.abs($-w)/n,d[w]+=x/n}for(let[$,w]of Object.entries({entropy:h,first:f,distance:m,received:Math.max(...d)}))l[$]?.[a].push(w)}}return l}};async function z(e,t,s=performance.now()){if(Object.assign(e.state,t),e.playing)return e.waits=s;e.playing=!0;do{e.waits=null;try{let n=e.state.text.trim()?await e.engine.play(e.stored,e.state):null;e.state.busy=n?"":"The sentence is empty; write one.",n&&e.waits===null&&await e.replace(n),window.regard.shown.push(performance.now()-s)}catch(n){e.state.busy=n.message}s=e.waits??s}while(e.waits!==null);return e.playing=!1,await e.draw(),ct(e,s)}var Wn={lenses:[],changes:[]},lt=({state:e,source:t})=>Number(e.place??t.header.chosen);async function ct(e,t=performance.now()){let{source:s}=e,{header:n}=s,o=lt(e);if(!(s instanceof V)||n.explained[o]||e.asking===s)return;e.asking=s;let r=Wn;try{r=await e.engine.ask("lens",{...s.given,place:o,others:s.others(o)})}catch(i){e.state.busy=i.message}if(e.asking=null,!(e.source!==s||e.playing)){if(!r)return ct(e,t);s.explain(o,r),n.explained[o]??=[],await e.draw(),window.regard.coloured.push(performance.now()-t)}}async function bs(e){let{source:t}=e,s=lt(e);if(!(t instanceof V)||t.effects?.place===s||(t.effects&&t.measure(null,{kinds:{}}),e.asking||e.playing))return;e.asking=t;let n={kinds:{}};try{n=await e.engine.ask("effects",{...t.given,place:s,others:t.others(s)})}catch(o){e.state.busy=o.message}e.asking=null,n&&t.measure(s,n),e.source===t&&!e.playing&&await e.draw()}var K={erase:"",off:"",factor:"1",warmth:"1",masks:""},Wt=class{constructor({model:t},s=document){let n=l=>s.getElementById(l).textContent,[o,r]=[n("regard-model"),n("regard-tensors")],i=this.waiting=new Map;this.model=t,this.words=JSON.parse(o).words??[],this.worker=window.regardWorker,this.worker.onmessage=({data:{id:l,answer:a,error:c}})=>{let{done:d,fail:h}=i.get(l);i.delete(l),c===void 0?d(a):h(new Error(c))},this.ready=this.#t("load",{text:o,packed:r,digest:t.digest}),this.ready.catch(()=>{}),this.last=0}#t(t,s){return new Promise((n,o)=>{let r=this.last=(this.last??0)+1;this.waiting.set(r,{done:n,fail:o}),this.worker.postMessage({...s,id:r,ask:t})})}async ask(t,s){return await this.ready,this.#t(t,s)}async run(t){let{target:s,probabilities:n,text:o,unknown:r,attention:i}=await this.ask("run",t),l=([c,...d],h)=>Array.from({length:c},(f,m)=>{let $=h.subarray(m*h.length/c,(m+1)*h.length/c);return d.length?l(d,$):$[0]}),a=Object.entries(i).map(([c,{shape:d,weights:h}])=>[c,l(d,h)]);return{target:s,probabilities:n,text:o,unknown:r,attention:Object.fromEntries(a)}}async play(t,s){let{changed:n,...o}=we(s);this.plain?.given.source!==o.source&&(this.plain=new V(t,o,await this.ask("run",o)));let{plain:r}=this;if(!Object.keys(n).length)return r;let i={...o,...n},l=r.answer.follows===void 0?r.answer.ids.target:[r.answer.follows];return new V(t,i,await this.ask("run",{...i,against:l}),r)}},$e=e=>e.split(".").map(Number);function we({text:e,erase:t,off:s,factor:n,warmth:o,masks:r}){let i=s.split(",").filter(Boolean).map(a=>a.split(".")).map(([a,c,d])=>[a,Number(c),Number(d)]),l=Object.fromEntries(r.split(";").filter(a=>a.includes(":")).map(a=>a.split(/:(.*)/s).map(c=>c.trim())));return{source:e,changed:{...t?{erase:$e(t)}:{},...i.length?{off:i}:{},...Number(n)!==1?{scale:Number(n)}:{},...Number(o)!==1?{temperature:Number(o)}:{},...Object.keys(l).length?{patterns:l}:{}}}}function be({state:e},t){return we(e).changed.patterns?.[t]??""}function jt(e,t,s,n){let{state:o,source:{header:{model:r}}}=e,i=o.masks.split(";").filter(c=>c&&!c.startsWith(`${t}:`)),l=s.replaceAll(";","").trim(),a=l===r.patterns[t]?"":l;return z(e,{masks:[...i,...a?[`${t}:${a}`]:[]].join(";")},n)}var ge=/\b(sliding_window|causal_window)\((\d+)\)/;function Ht(e,{kind:t,name:s,columns:n}){let o=e.source.header.model.patterns[t],r=be(e,t),i=r||o,[,l,a]=i.match(ge)??[],c=Math.max(e.source.answer.pieces[n==="read"?"target":n].length-1,1),d=a===void 0?c:Math.min(l==="sliding_window"?a>>1:a-1,c),h=$=>{if($===c&&!ge.test(o))return i.replace(/^(.*) & sliding_window\(\d+\)$/s,"$1").replace(/^\((.*)\)$/s,"$1");let w=`${l??"sliding_window"}(${l==="causal_window"?$+1:2*$})`;return a===void 0?`${i.includes("|")?`(${i})`:i} & ${w}`:i.replace(ge,w)},f=l==="causal_window"?`${d} back`:`\xB1${d}`,m=a===void 0?"all":f;return u`<label class="choice"
><span>Pattern, ${s.toLowerCase()}</span
><input
size="22"
placeholder=${o}
.value=${r}
@change=${$=>jt(e,t,$.target.value)}
/></label>
<label class="choice"
><span>Window ${m}</span
><input
type="range"
min="0"
max=${c}
.value=${String(d)}
aria-label="Window, ${s.toLowerCase()}"
@input=${({target:$,timeStamp:w})=>jt(e,t,h(+$.value),w)}
/></label>`}var jn=12,ys=(e,t,s)=>{let n=e?e.split(s):[];return(n.includes(t)?n.filter(o=>o!==t):[...n,t]).join(s)};function Rt(e){let{state:{layer:t,head:s,off:n},attention:o}=e;if(!e.engine||s==="mean")return p;let r=`${o.kind}.${t}.${s}`;return u`<button
aria-pressed=${String(n.split(",").includes(r))}
@click=${()=>z(e,{off:ys(n,r,",")})}
>
Switched off
</button>`}function xs(e){let{state:t,source:{header:s,answer:n,base:o},engine:r}=e,{texts:i,model:l}=s,a=(o??e.source).header.texts,c=i.source??i.text,d=t.erase?$e(t.erase):[],h=n.unknown??[],f=Object.keys(K).some(g=>String(t[g])!==K[g]),m=(g,y)=>{e.lit=y===null?null:{text:g,at:y},e.light?.()},$=(g,y)=>({enter:()=>m(g,y),leave:()=>m(g,null)}),w=(g,y,_,C,P)=>{let{enter:ut,leave:Y}=$(g,y);return u`<button
class="word ${g==="target"?"":"erased"}"
aria-pressed=${String(C)}
@click=${P}
@pointerenter=${ut}
@pointerleave=${Y}
@focus=${ut}
@blur=${Y}
>
<bdi>${_}</bdi>
</button>`},x=(g,y)=>w("target",y,g,y===lt(e),()=>e.set({row:y,place:y})),k=t.off.replaceAll(",",", "),A=i.source?"source":"text",b=g=>g.map(([y,_])=>u`<bdi>${y}</bdi> ${_.toFixed(3)} `);return u`<form class="live" @submit=${g=>g.preventDefault()}>
<label for="sentence">${l.label}</label>
<input
id="sentence"
name="text"
.value=${t.text}
maxlength="1000"
autocomplete="off"
spellcheck="false"
list="known"
@input=${({target:g,timeStamp:y})=>z(e,{text:g.value,erase:"",place:void 0},y)}
/>
<datalist id="known">
${Pn(t.text,r.words).map(g=>u`<option value=${g}></option>`)}
</datalist>
<span role="alert">${t.busy}</span>
</form>
${h.length?Hn(h):p}
<div class="played">
<span>reads</span>
<div class="words" role="group" aria-label="Words that are read; press one to erase it">
${c.map((g,y)=>n.erasable.includes(y)?w(A,y,a[A][y]??g,d.includes(y),()=>z(e,{erase:ys(t.erase,String(y),".")})):u`<span class="word plain"><bdi>${g}</bdi></span>`)}
</div>
${i.target?u`<span>writes</span>
<div
class="words"
role="group"
aria-label="Words that are written; press one to explain it"
>
${i.target.map(x)}
</div>`:n.follows!==void 0?u`<span>next</span>
<p>${b(n.likeliest.at(-1))}</p>`:n.likeliest.length?u`<span>masked</span>
<p>${n.likeliest.map(g=>u`${b(g)}<br />`)}</p>`:n.target.length?u`<span>class</span>
<p>${b(n.target.map((g,y)=>[g,n.probabilities[y]]))}</p>`:p}
</div>
<details class="tweaks" ?open=${f}>
<summary>Change the model${f?" (changed)":""}</summary>
<div class="bar">
${ps(e,"factor","Scores \xD7","Factor of all attention scores")}
${ps(e,"warmth","Temperature","What the logits of words are divided by")}
${l.kinds.map(g=>Ht(e,g))}
${t.off?u`<span class="badge">off: ${k}</span>`:p}
<button type="button" ?disabled=${!f} @click=${()=>z(e,K)}>
As trained
</button>
</div>
</details>`}function Hn(e){return u`<p class="unknown" role="status">
Not in the training of this model: <bdi>${e.join(", ")}</bdi>; what it makes of such words
is a guess.
</p>`}var Rn=e=>(2**e).toFixed(3).replace(/\.?0+$/,"");function ps(e,t,s,n){return u`<label class="choice"
><span>${s} ${Number(e.state[t]).toFixed(2)}</span
><input
type="range"
min="-3"
max="3"
step="0.1"
.value=${String(Math.log2(e.state[t]))}
aria-label=${n}
@input=${({target:o,timeStamp:r})=>z(e,{[t]:Rn(o.value)},r)}
/></label>`}function Pn(e,t){let[,s,n]=e.match(/^(.*?)([\p{L}\p{N}']+)$/su)??[null,"",""],o=[];for(let r=0;n&&r<t.length&&o.length<jn;r+=1)t[r].length>n.length&&t[r].toLowerCase().startsWith(n.toLowerCase())&&o.push(`${s}${t[r]}`);return o}var{I:Vr}=as;var ks=e=>e.strings===void 0;var As={ATTRIBUTE:1,CHILD:2,PROPERTY:3,BOOLEAN_ATTRIBUTE:4,EVENT:5,ELEMENT:6},pe=e=>(...t)=>({_$litDirective$:e,values:t}),Pt=class{constructor(t){}get _$AU(){return this._$AM._$AU}_$AT(t,s,n){this._$Ct=t,this._$AM=s,this._$Ci=n}_$AS(t,s){return this.update(t,s)}update(t,s){return this.render(...s)}};var pt=(e,t)=>{let s=e._$AN;if(s===void 0)return!1;for(let n of s)n._$AO?.(t,!1),pt(n,t);return!0},Dt=e=>{let t,s;do{if((t=e._$AM)===void 0)break;s=t._$AN,s.delete(e),e=t}while(s?.size===0)},vs=e=>{for(let t;t=e._$AM;e=t){let s=t._$AN;if(s===void 0)t._$AN=s=new Set;else if(s.has(e))break;s.add(e),Un(t)}};function Dn(e){this._$AN!==void 0?(Dt(this),this._$AM=e,vs(this)):this._$AM=e}function Bn(e,t=!1,s=0){let n=this._$AH,o=this._$AN;if(o!==void 0&&o.size!==0)if(t)if(Array.isArray(n))for(let r=s;r<n.length;r++)pt(n[r],!1),Dt(n[r]);else n!=null&&(pt(n,!1),Dt(n));else pt(this,e)}var Un=e=>{e.type==As.CHILD&&(e._$AP??=Bn,e._$AQ??=Dn)},Bt=class extends Pt{constructor(){super(...arguments),this._$AN=void 0}_$AT(t,s,n){super._$AT(t,s,n),vs(this),this.isConnected=t._$AU}_$AO(t,s=!0){t!==this.isConnected&&(this.isConnected=t,t?this.reconnected?.():this.disconnected?.()),s&&(pt(this,t),Dt(this))}setValue(t){if(ks(this._$Ct))this._$Ct._$AI(t,this);else{let s=[...this._$Ct._$AH];s[this._$Ci]=t,this._$Ct._$AI(s,this,0)}}disconnected(){}reconnected(){}};var qn="system-ui, sans-serif",M=pe(class extends Bt{render(){}update(e,[t]){queueMicrotask(()=>this.isConnected&&t(e.element))}});function W(e,t,s){let n=window.devicePixelRatio||1,[o,r]=[Math.round(t*n),Math.round(s*n)];e.width!==o&&(e.width=o),e.height!==r&&(e.height=r),e.style.width=`${t}px`,e.style.height=`${s}px`;let i=e.getContext("2d");return i.setTransform(n,0,0,n,0,0),i.clearRect(0,0,t,s),i.textBaseline="middle",i}function U(e,t,s="normal"){e.font=`${s} ${t}px ${qn}`}function L(e){let t=getComputedStyle(e),s=n=>t.getPropertyValue(n).trim();return{ink:s("--ink"),faint:s("--faint"),line:s("--line"),accent:s("--accent"),unseen:s("--unseen"),lit:hs,paper:s("--paper")}}function G(e,t,s){if(e.measureText(t).width<=s)return t;let[n,o]=[0,t.length];for(;n<o;){let r=n+o+1>>1;e.measureText(`${t.slice(0,r)}\u2026`).width<=s?n=r:o=r-1}return`${t.slice(0,n)}\u2026`}function Ut(e,t){for(let s of e.childNodes)s.nodeType===Node.TEXT_NODE&&(s.data=t)}function Q(e){let t=e.currentTarget.getBoundingClientRect();return[e.clientX-t.left,e.clientY-t.top]}var ye={ArrowLeft:[0,-1],ArrowRight:[0,1],ArrowUp:[-1,0],ArrowDown:[1,0],PageUp:[-10,0],PageDown:[10,0]};function N(e,[t,s],[n,o]){let r=null;return e.key in ye?r=[t+ye[e.key][0],s+ye[e.key][1]]:e.key==="Home"?r=[e.ctrlKey?0:t,0]:e.key==="End"&&(r=[e.ctrlKey?n-1:t,o-1]),r===null?null:(e.preventDefault(),[Math.min(Math.max(r[0],0),n-1),Math.min(Math.max(r[1],0),o-1)])}function v(e,t,s,n){return u`<label class="choice"
><span>${e}</span>
<select @change=${o=>n(o.target.value)}>
${t.map(([o,r])=>u`<option
value=${o}
?selected=${String(o)===String(s)}
.selected=${String(o)===String(s)}
>
${r}
</option>`)}
</select></label
>`}function j(e,{mean:t=!0,kinds:s=!0}={}){let{state:n,source:o}=e,[r,i]=e.attention.shape,l=c=>Array.from({length:c},(d,h)=>[h,String(h)]),a=t&&i>1?[["mean",`mean of ${i}`]]:[];return u`
${s&&o.header.attentions.length>1?v("Attention",o.header.attentions.map((c,d)=>[d,c.name]),n.kind,c=>e.set({kind:c,layer:o.header.attentions[c].shape[0]-1})):p}
${v("Layer",l(r),n.layer,c=>e.set({layer:c}))}
${v("Head",[...a,...l(i)],n.head,c=>e.set({head:c}))}
${Rt(e)}
`}function qt(e,t=!0){let{state:s}=e,n=Object.entries(Nt).filter(([o])=>t||o!=="largest");return u` ${v("Scale",n,s.scale,o=>e.set({scale:o}))} `}function xe([e,t],{place:s=o=>o,note:n=""}={}){return u`<p class="legend">
<span>${e}</span
><canvas
width="160"
height="12"
role="img"
aria-label="Colours from ${e} to ${t}"
${M(o=>{let r=o.getContext("2d");for(let i=0;i<160;i+=1)r.fillStyle=It(s(i/159)),r.fillRect(i,0,1,12)})}
></canvas
><span>${t}</span>${n?u`<span>${n}</span>`:p}
</p>`}var Vn="(0.25 is in the middle)";function Vt({state:{scale:e}},t=!0){return xe(["0",t&&e==="largest"?"the row's largest weight":"1"],{note:e==="root"?Vn:""})}function Ms(e){return e.sums||"The weights of each row sum to 1."}function I(e){return e.exact?u`<span class="badge" title="Weights are stored as 32-bit floating-point numbers."
>exact</span
>`:u`<span class="badge" title="Weights are stored as one byte each on a square-root scale."
>rounded to 0.004 or better</span
>`}function S(e,t){return u`<div class="scroll" tabindex="0" role="region" aria-label=${e}>${t}</div>`}function T(...e){return u`<thead>
<tr>
${e.map(t=>u`<th scope="col">${t}</th>`)}
</tr>
</thead>`}var zn=620;function Es(e,t){let{state:s,source:n}=e,{second:o}=n.header,r=Cs(e),[i,l]=r.attention?r.attention.shape:[0,0],a=[];for(let d=0;d<i;d+=1){r.outside&&l>1&&a.push([`${d}.mean`,`layer ${d}, mean of ${l}`]);for(let h=0;h<l;h+=1)a.push([`${d}.${h}`,`layer ${d}, head ${h}`])}let c=e.compared?.key===ke(e)&&e.compared.source===n?e.compared:null;return!c&&r.attention&&Kn(e,t,r),u`
<h2>${o?"Compare":"Compare two heads"}</h2>
<div class="bar">
${j(e)} ${I(t)}
${o?v("With",[["other",o.said],["own","another head of the same"]],r.outside?"other":"own",d=>e.set({against:d,other:void 0})):p}
${a.length?v(o?"Its head":"With",a,`${r.layer}.${r.head}`,d=>e.set({other:d.split(".")})):p}
${c?I(c.second):p}
</div>
${r.outside?u`<p class="hint">
The page shows: <bdi>${n.header.title}</bdi>; the other is:
<bdi>${o.header.title}</bdi>
${o.header.notes.map(d=>u`<bdi>${d}</bdi> `)}
</p>`:p}
<p class="hint">
Blue: the first head has more weight there; red: the second. Beside each row its
Jensen-Shannon distance, from 0 (equal) to 1 (no key in common).
</p>
${r.attention?c?Qn(e,c):u`<p class="hint">Comparing…</p>`:u`<p class="hint">The other has no ${e.attention.name.toLowerCase()}.</p>`}
${Xn(e,r)?Zn(n.header,o):p}
`}function Cs(e){let{header:t}=e.source,s=!!t.second&&e.state.against!=="own",n=s?t.second.header.attentions:t.attentions,o=s?n.findIndex(({name:h})=>h===e.attention.name):e.state.kind,r=n[o];if(!r)return{outside:s,attention:r,kind:o};let[i,l]=r.shape,[a,c]=e.state.other??(s?[e.state.layer,e.state.head]:[0,0]),d=(h,f)=>Math.min(Math.max(Math.trunc(Number(h))||0,0),f-1);return{outside:s,attention:r,kind:o,layer:d(a,i),head:s&&c==="mean"&&l>1?"mean":d(c,l)}}function ke(e){let{outside:t,kind:s,layer:n,head:o}=Cs(e);return[e.state.kind,e.state.layer,e.state.head,t,s,n,o].join("/")}async function Kn(e,t,{outside:s,attention:n,kind:o,layer:r,head:i}){let l=ke(e),{source:a}=e,c=s?a.second??=new F(a.header.second.header,a.arrays):a,d=await c.head(o,r,i);if(l!==ke(e)||e.source!==a||e.state.view!=="compare")return;let{matched:h}=a.header.second??{},f=b=>Array.from({length:b},(g,y)=>y),[m,$]=[[e.attention.rows,t.rows],[e.attention.columns,t.columns]].map(([b,g])=>s?h[b]:[f(g),f(g)]),w=[_s(t,m[0],$[0]),_s(d,m[1],$[1])],x=w[0].weights.values.map((b,g)=>b-w[1].weights.values[g]),k=x.reduce((b,g)=>Math.max(b,Math.abs(g)),0),A=m[0].map((b,g)=>Gn(...w.map(({weights:y,rest:_})=>[...y.row(g),_[g]])));e.compared={key:l,source:a,first:w[0].weights,second:w[1].weights,values:x,largest:k,distances:A,outside:s,hidden:w.map(({rest:b})=>ve(b)),left:t.rows-m[0].length,words:{rows:Ae(e.words.rows,c.words(n).rows,m),columns:Ae(e.words.columns,c.words(n).columns,$)}},e.draw()}function Ae(e,t,[s,n]){return s.map((o,r)=>e[o]===t[n[r]]?e[o]:`${e[o]} / ${t[n[r]]}`)}function _s(e,t,s){let n=new Float32Array(t.length*s.length),o=t.map((r,i)=>{let l=e.row(r),a=0;for(let c of l)a+=c;return s.forEach((c,d)=>{n[i*s.length+d]=l[c],a-=l[c]}),Math.max(a,0)});return{weights:new B(n,t.length,s.length,e.exact),rest:o}}function ve(e){return e.length?e.reduce((t,s)=>t+s,0)/e.length:0}function Gn(e,t){let s=0;for(let n=0;n<e.length;n+=1){let o=(e[n]+t[n])/2;e[n]>0&&(s+=e[n]*Math.log2(e[n]/o)/2),t[n]>0&&(s+=t[n]*Math.log2(t[n]/o)/2)}return Math.sqrt(Math.max(s,0))}function Qn(e,t){if(!t.first.rows||!t.first.columns)return u`<p class="hint">
The two have no words in common there, so there is nothing to compare.
</p>`;let s=Ts(e,t),n=t.largest.toFixed(3);return u` <p class="summary" data-distance>
Mean distance of the rows: ${ve(t.distances).toFixed(3)}; the largest difference of a
weight is ${t.largest.toFixed(3)}.
</p>
${t.outside?u`<p class="hint" data-hidden>
Hidden: ${Ss(t.hidden[0])} of the first and ${Ss(t.hidden[1])} of the
second are on words without a partner in the other; they count as one more word.
${Jn(t.left)}
</p>`:p}
<canvas
class="difference"
tabindex="0"
role="application"
aria-roledescription="map of differences"
aria-label="Differences; arrow keys move. ${s}"
${M(o=>to(e,o,t))}
@click=${o=>eo(e,o,t)}
@keydown=${o=>{let r=N(o,zt(e,t),[t.first.rows,t.first.columns]);r&&e.set({pair:r}).then(()=>e.set({said:Ts(e,t)}))}}
></canvas>
<p class="readout">${s}</p>
${xe([`the second has ${n} more`,`the first has ${n} more`],{place:o=>2*o-1})}
<details class="twin">
<summary>The row as a table</summary>
${Yn(e,t)}
</details>`}var Ss=e=>`${(100*e).toFixed(0)} %`;function Jn(e){return e?`${e} ${e===1?"row of the first has":"rows of the first have"} no partner.`:""}function zt(e,{first:t}){let[s,n]=e.state.pair??[0,0];return[Math.min(s,t.rows-1),Math.min(n,t.columns-1)]}function Ts(e,t){let{first:s,second:n,distances:o,words:r}=t,[i,l]=zt(e,t),[a,c]=[s,n].map(d=>d.at(i,l).toFixed(4));return`${r.rows[i]} looks at ${r.columns[l]} with ${a} in the first head and ${c} in the second; distance of the row ${o[i].toFixed(3)}.`}function Yn(e,t){let[s]=zt(e,t),{first:n,second:o,words:r}=t;return S("The row as a table",u`<table>
${T("Word","First","Second","Difference")}
<tbody>
${r.columns.slice(0,100).map((i,l)=>u`<tr>
<th scope="row"><bdi>${i}</bdi></th>
<td>${n.at(s,l).toFixed(4)}</td>
<td>${o.at(s,l).toFixed(4)}</td>
<td>${(n.at(s,l)-o.at(s,l)).toFixed(4)}</td>
</tr>`)}
</tbody>
</table>`)}function Xn({engine:e,source:{header:t}},{outside:s}){let{texts:n,changes:o,second:r}=t;return s&&!e&&n.target&&o&&r.header.changes}function Zn(e,t){let s=(t.matched.target??[[],[]])[0].map((r,i)=>[r,t.matched.target[1][i]]),n=[e.texts.target,t.header.texts.target],o=(r,i)=>Ae(...n,[[r],[i]])[0];return u`<details class="twin" open>
<summary>The probability of each written word</summary>
${S("Probabilities of written words",u`<table data-written>
${T("Word","First","Second")}
<tbody>
${s.map(([r,i])=>u`<tr>
<th scope="row">
<bdi>${o(r,i)}</bdi>
</th>
<td>${e.changes.unchanged.probabilities[r].toFixed(3)}</td>
<td>${t.header.changes.unchanged.probabilities[i].toFixed(3)}</td>
</tr>`)}
</tbody>
</table>`)}
</details>`}function to(e,t,s){let{first:n,values:o,largest:r,distances:i,words:l}=s,a=L(t),c=Math.max(t.parentElement.clientWidth-2,240),d=90,h=64,f=Math.max(Math.min((c-d-70)/n.columns,zn/n.rows,30),.1),[m,$]=[f*n.columns,f*n.rows],w=W(t,d+m+66,h+$+4);t.place={left:d,top:h,cell:f};let x=new OffscreenCanvas(n.columns,n.rows),k=new ImageData(n.columns,n.rows);o.forEach((y,_)=>{k.data.set([...Lt(r?y/r:0),255],4*_)}),x.getContext("2d").putImageData(k,0,0),w.imageSmoothingEnabled=f<1,w.drawImage(x,d,h,m,$),U(w,f<9?10:Math.min(Math.max(f*.6,8),12));let A=f<9?Math.ceil(20/f):Math.ceil(11/f);w.textAlign="left",w.fillStyle=a.ink;for(let y=0;y<n.columns;y+=A)w.save(),w.translate(d+(y+.5)*f,h-4),w.rotate(-Math.PI/4),w.fillText(G(w,l.columns[y],80),0,0),w.restore();for(let y=0;y<n.rows;y+=A)w.fillStyle=a.ink,w.textAlign="right",w.fillText(G(w,l.rows[y],d-8),d-5,h+(y+.5)*f),w.fillStyle=a.accent,w.fillRect(d+m+4,h+y*f,50*ve(i.slice(y,y+A)),Math.max(f*A-1,1));let[b,g]=zt(e,s);w.strokeStyle=a.accent,w.lineWidth=2,w.strokeRect(d+g*f,h+b*f,Math.max(f,4),Math.max(f,4))}function eo(e,t,{first:s}){let{left:n,top:o,cell:r}=t.currentTarget.place,[i,l]=Q(t),[a,c]=[Math.floor((l-o)/r),Math.floor((i-n)/r)];a>=0&&a<s.rows&&c>=0&&c<s.columns&&e.set({pair:[a,c]})}var _e={layer:{title:"layer and head",says:""},entropy:{title:"entropy",says:"low: each word looks at few others; high: at all alike",unit:"nats"},distance:{title:"distance",says:"the mean distance between a word and what it looks at",unit:"words"},first:{title:"weight of the first word",says:"a head that looks there does little (an attention sink)"},received:{title:"most received",says:"the largest share of all weight that one word receives"},effect:{title:"effect on the word",says:"how far the log odds of the word fall when the head gives nothing; one head alone: of two that do the same, neither may have an effect"},apart:{title:"distance from the other",says:"the mean Jensen-Shannon distance from the same head of what is compared: 0 equal, 1 no key in common"}},so=new Set(["apart","effect"]);function Kt(e,t){if(_e[t]||!Object.hasOwn(e.links,t))return _e[t]??{title:t,says:""};let[s,n]=e.links[t];return{title:`relation: ${t}`,says:`the mean weight on the right word, over ${s} link${s===1?"":"s"} of this text that rules for English find; ${n.toFixed(2)} if all words had the same weight; one text says little about a head in general`}}var J=14,H=15,Se=3,no=56,Me=100;function Os(e){let{state:t,attention:s}={state:e.state,attention:e.attention};bs(e);let n=["layer",...Object.keys(s.statistics)],o=n.includes(t.sort)?t.sort:"layer",r=Kt(s,o),i=Ns(s,o),l=Fs(o)?"highest":"lowest",a=r.says?`Sorted by ${r.title} (${r.says}), the ${l} first. `:"",c=e.source.header.attentions,[d,h]=s.shape,f=Math.max(i.findIndex(([m,$])=>m===t.layer&&$===t.head),0);return u`
<h2>What does each head do?</h2>
<div class="bar">
${c.length>1?v("Attention",c.map((m,$)=>[$,m.name]),t.kind,m=>e.set({kind:m})):""}
${v("Sort by",n.map(m=>[m,Kt(s,m).title]),o,m=>e.set({sort:m}))}
${qt(e,!1)} ${Rt(e)}
</div>
<p class="hint">
${s.name}. Rows: ${s.row_title}. Columns: ${s.column_title}.
${s.sums??""} ${a}Choose a head to see it large; each small map shows the largest
weight of each part. Above each map: layer.head, both counted from 0, so
${d-1}.${h-1} is head ${h-1} of layer
${d-1}${o==="layer"?"":`; then the ${r.title}`}.
</p>
${oo(e)} ${Vt(e,!1)}
<canvas
class="heads"
tabindex="0"
role="application"
aria-roledescription="map of heads"
aria-label="Heads; arrow keys move, Enter opens a head. ${Ls(s,i,f)}"
data-chosen=${f}
${M(m=>Is(e,m,i,f,o))}
@click=${m=>Ws(e,i,lo(m))}
@keydown=${m=>co(e,m,i,f)}
></canvas>
<details class="twin">
<summary>The same as a table</summary>
${ho(e,s,i,n)}
</details>
`}function Ns(e,t){let[s,n]=e.shape,o=[];for(let a=0;a<s;a+=1)for(let c=0;c<n;c+=1)o.push([a,c]);let r=e.statistics[t],i=Fs(t)?-1:1,l=([a,c])=>r[a][c]??i*(1/0);return r?o.sort((a,c)=>l(a)===l(c)?0:i*(l(a)-l(c))):o}function Fs(e){return so.has(e)||!_e[e]}var ht=(e,t)=>e===null?"\u2013":`${e<0?"\u2212":""}${Math.abs(e).toFixed(t)}`;function oo(e){let{source:t,attention:s}=e,{effects:n}=t,o=lt(e);if(!e.engine||n?.place===o&&!s.statistics.effect)return"";if(n?.place!==o)return u`<p class="hint" role="status" data-effects>
Switching off one head after the other…
</p>`;let r=Ns(s,"effect")[0],i=n.others.map((d,h)=>u`${h?" or ":""}<bdi>${d}</bdi>`),l=i.length?u` rather than ${i}`:"",a=r.join("."),c=u`“<bdi>${n.word}</bdi>”`;return u`<p class="hint" data-effects>
What each head does for ${c}${l}: without ${a} its log odds of ${ht(n.own,2)}
fall by ${ht(s.statistics.effect[r[0]][r[1]],2)}, more than without any other
head here. The bar above a map is as long as its head's effect, and red if the word gains
without it. Without all heads of a layer they fall by
${s.layers.map((d,h)=>`${ht(d,2)} (layer ${h})`).join(", ")}.
</p>`}function Ls(e,t,s){let[n,o]=t[s],r=Object.entries(e.statistics).map(([i,l])=>`${Kt(e,i).title} ${ht(l[n][o],2)}`);return`Layer ${n}, head ${o}: ${r.join(", ")}.`}function ro(e,t,s){let n=Math.max(e.parentElement.clientWidth-2,200),o=n-2*Se+J,r=t.shape[1],i=Math.max(Math.min(Math.floor(o/(no+J)),r),1),l=i;for(;r%l;)l-=1;2*l<=i&&(l=i);let a=Math.min(Math.floor(o/l)-J,150),[,,c,d]=t.shape,h=Math.min(Math.max(Math.round(a*c/d),24),2*a);return{width:n,side:a,tall:h,across:l,down:Math.ceil(s.length/l)}}async function Is(e,t,s,n,o){let{kind:r,scale:i}=e.state,{attention:l}=e,a=await e.source.thumbnails(r);if(!t.isConnected||e.state.view!=="heads")return;let{width:c,side:d,tall:h,across:f,down:m}=ro(t,l,s);t.grid={side:d,tall:h,across:f},e.light=()=>t.isConnected&&e.state.view==="heads"&&Is(e,t,s,n,o);let $=W(t,c,m*(h+H+J)),w=L(t),{effect:x}=l.statistics,k=Math.max(...x?.flat().map(Math.abs)??[]),A=new OffscreenCanvas(a.columns,a.rows),b=Ft();$.imageSmoothingEnabled=!1,s.forEach(([g,y],_)=>{let C=Se+_%f*(d+J),P=Math.floor(_/f)*(h+H+J);ao(A,a,g*l.shape[1]+y,b,i),$.drawImage(A,C,P+H,d,h),U($,11),$.fillStyle=w.faint;let ut=l.statistics[o];$.fillText(`${g}.${y}${ut?`  ${ht(ut[g][y],2)}`:""}`,C,P+H/2),x&&k&&($.fillStyle=It(Math.sign(x[g][y])),$.fillRect(C,P+H-4,d*Math.abs(x[g][y])/k,3));let Y=_===n?2:.5;$.strokeStyle=_===n?w.accent:w.line,$.lineWidth=_===n?3:1,$.strokeRect(C-Y,P+H-Y,d+2*Y,h+2*Y),io($,e,[C,P+H,d,h],w),e.state.off?.split(",").includes(`${l.kind}.${g}.${y}`)&&($.strokeStyle=w.lit,$.lineWidth=2,$.beginPath(),$.moveTo(C,P+H+h),$.lineTo(C+d,P+H),$.stroke())})}function io(e,{lit:t,attention:s},[n,o,r,i],l){if(!t)return;let[,,a,c]=s.shape;e.strokeStyle=l.lit,e.lineWidth=1.5,s.rows===t.text&&e.strokeRect(n-1,o+i*t.at/a,r+2,Math.max(i/a,3)),s.columns===t.text&&e.strokeRect(n+r*t.at/c,o-1,Math.max(r/c,3),i+2),s.columns==="read"&&t.text==="target"&&t.at+1<c&&e.strokeRect(n+r*(t.at+1)/c,o-1,Math.max(r/c,3),i+2)}function ao(e,{rows:t,columns:s,bytes:n},o,r,i){let l=new ImageData(s,t),a=new Uint32Array(l.data.buffer),c=o*t*s;for(let d=0;d<a.length;d+=1){let h=n[c+d]/255;a[d]=r[bt(i==="root"?h:h*h)]}e.getContext("2d").putImageData(l,0,0)}function lo(e){let{side:t,tall:s,across:n}=e.currentTarget.grid,[o,r]=Q(e),i=Math.min(Math.max(Math.floor((o-Se)/(t+J)),0),n-1);return Math.floor(r/(s+H+J))*n+i}function Ws(e,t,s){t[s]&&e.set({layer:t[s][0],head:t[s][1],view:"map"})}function co(e,t,s,n){if(t.key==="Enter"||t.key===" "){t.preventDefault(),Ws(e,s,n);return}let{across:o}=t.currentTarget.grid,r=[Math.floor(n/o),n%o],i=N(t,r,[Math.ceil(s.length/o),o]);if(i===null)return;let l=Math.min(i[0]*o+i[1],s.length-1);e.set({layer:s[l][0],head:s[l][1],said:Ls(e.attention,s,l)})}function ho(e,t,s,n){let o=n.filter(l=>l!=="layer"),r=(l,a,c)=>ht(t.statistics[l][a][c],3),i=s.length>Me?u`<p class="hint">The first ${Me} of ${s.length}.</p>`:"";return u`${S("Heads as a table",u`<table>
${T("Layer","Head",...o.map(l=>Kt(t,l).title))}
<tbody>
${s.slice(0,Me).map(([l,a])=>u`<tr>
<td>${l}</td>
<th scope="row">
<button
class="link"
aria-label="Open layer ${l}, head ${a}"
@click=${()=>e.set({layer:l,head:a,view:"map"})}
>
${a}
</button>
</th>
${o.map(c=>u`<td>${r(c,l,a)}</td>`)}
</tr>`)}
</tbody>
</table>`)}
${i}`}var uo=34,js=9,fo=110,Hs=20;function Ps(e,t){let{state:s,words:n}=e,o=Gt(e,t,s.row,s.column);return u`
<h2>Heat map</h2>
<div class="bar">
${j(e)} ${qt(e)} ${I(t)}
<button @click=${r=>go(r)}>Save PNG</button>
</div>
<p class="hint">
${e.attention.name}. Rows: ${e.attention.row_title}. Columns:
${e.attention.column_title}.
${Ms(e.attention)}${e.attention.unwritten?" Grey cells did not exist yet.":""}
</p>
<div class="map" tabindex="-1">
<canvas
class="heatmap"
tabindex="0"
role="application"
aria-roledescription="heat map"
aria-label="Weights; arrow keys move. ${o}"
${M(r=>$o(e,r,t))}
@pointermove=${r=>Rs(e,r,t)}
@click=${r=>Rs(e,r,t)}
@keydown=${r=>wo(e,r,t)}
></canvas>
<div class="cursor" aria-hidden="true"></div>
</div>
<p class="readout" data-readout>${o}</p>
${Vt(e)}
<details class="twin" open>
<summary>The row of <bdi>${n.rows[s.row]}</bdi> as a table</summary>
${Ne(e,t)}
</details>
`}function Gt(e,t,s,n){let{rows:o,columns:r}=e.words;if(Ds(e,t,s,n))return`${o[s]} (${s}) could not look at ${r[n]} (${n}).`;let i=t.at(s,n),l=1;for(let a of t.row(s))a>i&&(l+=1);return`${o[s]} (${s}) looks at ${r[n]} (${n}) with weight ${Te(i)}, rank ${l} of ${r.length}.`}function Te(e){return e>=.001||e===0?e.toFixed(4):e.toExponential(2)}function Ds(e,t,s,n){return e.attention.unwritten&&n>s&&t.at(s,n)===0}function Ee(e,t){let s=Math.max(e.parentElement.clientWidth-2,240),n=s<520,o=c=>c>=js,[r,i]=n?[80,30]:[fo,56],l=Math.min((s-r-i)/t.columns,uo),a=window.devicePixelRatio||1;return o(l)||(l=Math.max(Math.min((s-38)/t.columns,js-.5),1/a)),l=l>=2?Math.floor(l*a)/a:l,o(l)?{cell:l,left:r,right:i,top:78,named:!0,ratio:a}:{cell:l,left:24,right:12,top:24,named:!1,ratio:a}}function mo(e,{scale:t},s){let n=new OffscreenCanvas(e.columns,e.rows),o=new ImageData(e.columns,e.rows),r=new Uint32Array(o.data.buffer),i=Ft();for(let l=0,a=0;l<e.rows;l+=1){let c=e.row(l),d=t==="largest"?c[O(c,1)[0]]:1;for(let h=0;h<e.columns;h+=1,a+=1)r[a]=s&&s(l,h)?0:i[bt(ms(c[h],t,d))]}return n.getContext("2d").putImageData(o,0,0),n}function $o(e,t,s){let n=Ee(t,s),{cell:o,left:r,right:i,top:l,named:a}=n,[c,d]=[s.columns*o,s.rows*o],h=L(t),f=[s.rows,e.state.scale,h.unseen,c,t.parentElement.clientWidth].join();if(t.place=n,t.painted!==s||t.key!==f){t.painted=s,t.key=f;let m=W(t,r+c+i,l+d+2);m.fillStyle=h.unseen,m.fillRect(r,l,c,d),m.imageSmoothingEnabled=o*n.ratio<1,m.drawImage(mo(s,e.state,($,w)=>Ds(e,s,$,w)),r,l,c,d),m.strokeStyle=h.line,m.strokeRect(r-.5,l-.5,c+1,d+1),a?Ce(m,e.words,n,h):Oe(m,s,n,h)}yt(t,e.state.row,e.state.column)}function Ce(e,{rows:t,columns:s},{cell:n,left:o,right:r,top:i},l){U(e,Math.min(Math.max(n*.62,8),13)),e.fillStyle=l.ink,e.textAlign="right",t.forEach((c,d)=>e.fillText(G(e,c,o-8),o-5,i+(d+.5)*n)),e.textAlign="left";let a=o+s.length*n+r;s.forEach((c,d)=>{let h=Math.SQRT2*(a-o-(d+.5)*n)-8;e.save(),e.translate(o+(d+.5)*n,i-5),e.rotate(-Math.PI/4),e.fillText(G(e,c,Math.min(96,h)),0,0),e.restore()})}function Oe(e,t,{cell:s,left:n,top:o},r,i=1){U(e,10),e.fillStyle=r.faint;let l=[10,20,50,100,200,500,1e3].find(a=>a*s>=40)??5e3;e.textAlign="center";for(let a=0;a<t.columns;a+=l)e.fillText(String(a*i),n+(a+.5)*s,o-8);e.textAlign="right";for(let a=0;a<t.rows;a+=l)e.fillText(String(a*i),n-3,o+(a+.5)*s)}function yt(e,t,s){let{cell:n,left:o,top:r}=e.place,{style:i}=e.parentElement.querySelector(".cursor"),l=Math.max(n,6),[a,c]=[o+(s+.5)*n,r+(t+.5)*n];i.transform=`translate(${a-l/2}px, ${c-l/2}px)`,i.width=`${l}px`,i.height=`${l}px`}function Qt(e,{rows:t,columns:s}){let{cell:n,left:o,top:r}=e.currentTarget.place,[i,l]=Q(e),[a,c]=[Math.floor((l-r)/n),Math.floor((i-o)/n)];return a>=0&&c>=0&&a<t&&c<s?[a,c]:[]}function Rs(e,t,s){let n=t.currentTarget,[o,r]=Qt(t,s);o!==void 0&&(yt(n,o,r),t.type==="click"?e.set({row:o,column:r,said:Gt(e,s,o,r)}):Ut(n.parentElement.nextElementSibling,Gt(e,s,o,r)))}function wo(e,t,s){let{row:n,column:o}=e.state,r=N(t,[n,o],[s.rows,s.columns]);r!==null&&e.set({row:r[0],column:r[1],said:Gt(e,s,...r)})}function Ne(e,t){let{row:s}=e.state,{columns:n}=e.words,o=t.row(s),r=O(o,Hs),i=Math.max(0,o.reduce((c,d)=>c+d,0)-r.reduce((c,d)=>c+o[d],0)),l=n.length-Hs,a=l>0?`The other ${l} keys together: ${Te(i)}. `:"";return u`${S("The largest weights of the row",u`<table>
${T("Rank","Place","Word","Weight")}
<tbody>
${r.map((c,d)=>u`<tr>
<td>${d+1}</td>
<td>${c}</td>
<th scope="row"><bdi>${n[c]}</bdi></th>
<td>${Te(o[c])}</td>
</tr>`)}
</tbody>
</table>`)}
<p class="hint">${a}Entropy of the row: ${t.entropy(s).toFixed(3)} nats.</p>`}function go(e){let t=e.currentTarget.closest("main").querySelector("canvas.heatmap"),s=new OffscreenCanvas(t.width,t.height),n=s.getContext("2d");n.fillStyle=L(t).paper,n.fillRect(0,0,s.width,s.height),n.drawImage(t,0,0),s.convertToBlob({type:"image/png"}).then(o=>{let r=document.createElement("a");r.href=URL.createObjectURL(o),r.download="attention.png",r.click(),setTimeout(()=>URL.revokeObjectURL(r.href),1e3)})}var E=22,R=16,Jt=640;function Yt(e,t){let s=t*E;e.revealed!==t&&(e.revealed=t,(s<e.scrollTop||s+E>e.scrollTop+e.clientHeight)&&(e.scrollTop=s-e.clientHeight/2))}function dt(e,t,s,n=1/0){let o=t.parentElement.parentElement,r=Math.max(o.clientWidth-2,240),i=W(t,r,t.tall),l=L(t),{rows:a,columns:c}=e.words,d=Math.min(Math.max(r*.24,70),190),h=w=>w*E+E/2+4-o.scrollTop,f=Math.max(Math.floor(o.scrollTop/E)-1,0),m=f+Math.ceil(t.tall/E)+2;t.side=d;let $=s.rows>1;for(let w=f;w<Math.min(m,s.rows);w+=1)w!==e.state.row&&w<n&&Bs(i,s.links(w,e.state.share,R).links,h(w),h,[d+6,r-d-6],l.faint,$?.35:1);e.state.row>=f-40&&e.state.row<=m+40&&Bs(i,s.links(e.state.row,e.state.share,R).links,h(e.state.row),h,[d+6,r-d-6],l.accent,1),n<1/0&&bo(i,s.row(e.state.row),f,m,h,r-d,d,l),Us(i,a,f,m,h,d,"right",l,e.state.row,d,n),Us(i,c,f,m,h,r-d,"left",l,-1,d)}function Bs(e,t,s,n,[o,r],i,l){e.strokeStyle=i;for(let{key:a,weight:c}of t)e.globalAlpha=l<1?l*Math.min(.15+.85*c,1):Math.min(.45+.55*c,1),e.lineWidth=.8+4*c+(l<1?0:.5),e.beginPath(),e.moveTo(o,s),e.bezierCurveTo((o+r)/2,s,(o+r)/2,n(a),r,n(a)),e.stroke();e.globalAlpha=1}function bo(e,t,s,n,o,r,i,l){e.fillStyle=l.accent,e.globalAlpha=.25;for(let a=s;a<Math.min(n,t.length);a+=1)e.fillRect(r,o(a)-E/2+2,i*t[a],E-4);e.globalAlpha=1}function Us(e,t,s,n,o,r,i,l,a,c=r,d=1/0){e.textAlign=i;for(let h=s;h<Math.min(n,t.length);h+=1)U(e,13,h===a?"bold":"normal"),e.fillStyle=h===a?l.accent:l.ink,e.globalAlpha=h>d?.45:1,e.fillText(G(e,t[h],c-6),r,o(h));e.globalAlpha=1}function qs(e,t){let{state:s,words:n}=e,o=Math.max(t.rows,t.columns),r=Math.min(o*E+8,Jt),{hidden:i,links:l}=t.links(s.row,s.share,R);return u`
<h2>Links</h2>
<div class="bar">
${j(e)} ${I(t)}
<label class="choice"
><span>Weight shown: ${Math.round(100*s.share)} %</span>
<input
type="range"
min="5"
max="100"
step="5"
.value=${String(Math.round(100*s.share))}
@input=${a=>e.set({share:Number(a.target.value)/100})}
/></label>
<span class="badge" data-hidden
>hidden: ${(100*i).toFixed(0)} % of this row,
${(100*po(t,s.share)).toFixed(0)} % of all</span
>
</div>
<p class="hint">
On the left ${e.attention.row_title}, on the right ${e.attention.column_title}. Each word
is linked to as few words as carry the chosen share of its weight, at most ${R}. Choose a
word on the left.
</p>
<div
class="links"
@scroll=${a=>dt(e,a.currentTarget.querySelector("canvas"),t)}
tabindex="-1"
>
<div
class="tall"
${M(a=>{a.style.height=`${o*E+8}px`,a.parentElement.style.maxHeight=`${r+2}px`})}
>
<canvas
tabindex="0"
role="application"
aria-roledescription="links"
aria-label="Links; up and down arrows choose a word. ${Fe(e,t)}"
${M(a=>{a.tall=r,Yt(a.parentElement.parentElement,s.row),dt(e,a,t)})}
@click=${a=>Le(e,a,t)}
@keydown=${a=>yo(e,a,t)}
></canvas>
</div>
</div>
<p class="readout">${Fe(e,t)}</p>
<details class="twin">
<summary>The row of <bdi>${n.rows[s.row]}</bdi> as a table</summary>
${Ne(e,t)}
</details>
${l.length===0?u`<p class="hint">This word looks at nothing.</p>`:""}
`}function po(e,t){if(e.hiddenShare!==t){let[s,n]=[0,0];for(let o=0;o<e.rows;o+=1){s+=e.links(o,t,R).hidden;for(let r of e.row(o))n+=r}e.hiddenShare=t,e.hiddenMass=n?s/n:0}return e.hiddenMass}function Fe(e,t){let{rows:s,columns:n}=e.words,{links:o,hidden:r}=t.links(e.state.row,e.state.share,R),i=o.slice(0,5).map(({key:l,weight:a})=>`${n[l]} (${a.toFixed(2)})`).join(", ");return`${s[e.state.row]} looks at ${i||"nothing"}; ${(100*r).toFixed(0)} % of its weight is hidden.`}function Le(e,t,s){let n=t.currentTarget.parentElement.parentElement,o=Math.floor((Q(t)[1]+n.scrollTop-4)/E);o>=0&&o<s.rows&&e.set({row:o})}function yo(e,t,s){let n=N(t,[e.state.row,0],[s.rows,1]);n!==null&&e.set({row:n[0],said:""}).then(()=>e.set({said:Fe(e,s)}))}function zs(e,t){let{state:s,words:n,source:o}=e,{row:r}=s,i=Math.min(Math.max(t.rows,t.columns)*E+8,Jt),{hidden:l}=t.links(r,s.share,R),a=Vs(e,t),c=h=>e.set({row:Math.min(Math.max(h,0),t.rows-1)}).then(()=>e.set({said:Vs(e,t)})),d=o.header.changes?.unchanged.likeliest[r];return u`
<h2>Where does it look while it writes?</h2>
<div class="bar">
${j(e,{kinds:!1})} ${I(t)}
<button @click=${()=>c(r-1)} ?disabled=${r===0}>Previous step</button>
<button @click=${()=>c(r+1)} ?disabled=${r===t.rows-1}>Next step</button>
<span class="badge">step ${r+1} of ${t.rows}</span>
<span class="badge" data-hidden>hidden: ${(100*l).toFixed(0)} % of this row</span>
</div>
${e.attention.says?u`<p class="hint">${e.attention.says}</p>`:p}
<p class="summary" data-step>${a}</p>
${d?u`<p class="hint">Most probable there: ${xo(d)}.</p>`:p}
<div
class="links"
@scroll=${h=>dt(e,h.currentTarget.querySelector("canvas"),t,r)}
tabindex="-1"
>
<div
class="tall"
${M(h=>{h.style.height=`${Math.max(t.rows,t.columns)*E+8}px`,h.parentElement.style.maxHeight=`${i+2}px`})}
>
<canvas
class="steps"
tabindex="0"
role="application"
aria-roledescription="steps of a translation"
aria-label="Steps; up and down arrows change the step. ${a}"
${M(h=>{h.tall=i,Yt(h.parentElement.parentElement,r),dt(e,h,t,r)})}
@click=${h=>Le(e,h,t)}
@keydown=${h=>{let f=N(h,[r,0],[t.rows,1]);f!==null&&c(f[0])}}
></canvas>
</div>
</div>
<p class="hint">
Left: what is written; later words are faint. Right: the source, with a bar as long as its
weight at this step. A word in several sub-words has several steps, whose rows are averaged.
</p>
<details class="twin">
<summary>The step as a table</summary>
${ko(t,r,n)}
</details>
`}function xo(e){return e.map(([t,s],n)=>u`${n?", ":""}<bdi>${t}</bdi> ${s.toFixed(3)}`)}function Vs(e,t){let{row:s,share:n}=e.state,{rows:o,columns:r}=e.words,{links:i}=t.links(s,n,R),l=i.slice(0,4).map(({key:h,weight:f})=>`\u201C${r[h]}\u201D (${f.toFixed(2)})`).join(", "),a=e.source.header.changes?.unchanged.probabilities[s],c=s?`\u201C${o.slice(Math.max(s-3,0),s).join(" ")}\u201D`:"<begin>",d=a===void 0?"":` with probability ${a.toFixed(3)}`;return`Step ${s+1}: after ${c} it looks at ${l||"nothing"} and writes \u201C${o[s]}\u201D${d}.`}function ko(e,t,s){let n=new Float64Array(e.columns);for(let o=0;o<=t;o+=1)e.row(o).forEach((r,i)=>n[i]+=r);return S("The step as a table",u`<table data-coverage>
${T("Source word","Weight now","Sum so far")}
<tbody>
${s.columns.map((o,r)=>u`<tr>
<th scope="row"><bdi>${o}</bdi></th>
<td>${e.at(t,r).toFixed(4)}</td>
<td>${n[r].toFixed(4)}</td>
</tr>`)}
</tbody>
</table>`)}var Ao={written:{of:"source",one:"Written word",each:"Each written word",table:"Written words",moves:"",says:"Probabilities are among all words, after the words that were written before; of a word in several sub-words the product.",ends:"The translations are written by greedy search."},next:{of:"text",one:"Next word",each:"Each next word",table:"Next words",moves:"How the probability of each next word moves",says:"Probabilities are among all words, after the words that were read before; of a word in several sub-words the product.",ends:"Words up to the changed one were predicted before it was read, so their probability stays."},masked:{of:"text",one:"Masked word",each:"Each masked word",table:"Masked words",moves:"How the probability of what was most probable moves",says:"Probabilities are among all words. Each masked word is named by what is most probable there in the text as it is.",ends:""},vectors:{of:"text",one:"Word",each:"Each word",table:"Words",moves:"How far the vector of each word stays where it was",says:"The cosine is between the vectors that the last layer gives a word before and after: 1 is the same direction. Of a word in several sub-words their mean is taken.",ends:"The model predicts no words here, so its vectors are compared."}};function Qs(e){let{header:t}=e.source,{changes:{follows:s="words",unchanged:n,erased:o}}=t,{texts:r}=(e.source.base??e.source).header,i=s!=="words"?s:r.target?"written":"next",l={written:()=>r.target,next:()=>[...r.text.slice(1),n.likeliest.at(-1)[0][0]],masked:()=>n.likeliest.map(([[b]])=>b),vectors:()=>r.text}[i](),a=i==="next"?1:0,c=Object.keys(o).map(Number),d=e.source.header.changes.now,h=c.includes(e.state.changed)?e.state.changed:null,f=vo(e,{kind:i,first:a,places:c,chosen:h,last:l.length-1}),m=b=>i==="masked"?`${l[b]} (masked place ${b+1})`:a&&b===l.length-1?`${l[b]} (what follows)`:l[b],$=b=>i==="vectors"?b.similarities:b.probabilities,w=b=>$(o[b])[f],x=c.filter(b=>i==="next"?b<=f:i!=="vectors"||b!==f),k=x.length?x:c,A=h??k[O(k.map(b=>-w(b)),1)[0]];return{kind:i,...Ao[i],source:r.source??r.text,follow:l,written:f,named:m,numbers:$,unchanged:n,erased:o,places:c,place:A,all:d}}function vo({state:e},{kind:t,first:s,places:n,chosen:o,last:r}){let i=c=>Math.min(Math.max(Number(c),0),r);if(t==="written")return i(e.row);if(e.next!==void 0)return i(e.next);if(t!=="next")return i(t==="masked"?0:e.row);let l=e.row-s,a=l>=Math.min(...n)?i(l):r;return Math.max(a,o??0)}function Js(e){let t=Qs(e),{kind:s,source:n,follow:o,written:r,named:i,numbers:l,unchanged:a,erased:c,places:d,place:h,all:f}=t,m=f??c[h],$=e.engine&&e.source.answer.erasable.length?"Computing\u2026":`The ${t.of} has no word that can be erased.`,w=e.engine?"Press words above to erase them, switch heads off, or change the model.":`Choose a word of the ${t.of}:`,x=u`“<bdi>${n[h]}</bdi>”`;if(!m)return u`<h2>What if a word were missing?</h2>
<p class="hint">${$}</p>`;let k=(b,g,y)=>s==="vectors"?[b,[],l(g)[y],[]]:[b,[l(a)[y]],l(g)[y],[g.likeliest[y].map(([_,C])=>`${_} ${C.toFixed(2)}`).join(", ")]],A=b=>s==="vectors"?[b,"Cosine"]:[b,"Before","Now","Most probable now"];return u`
<h2>${e.engine?"What if it were changed?":"What if a word were missing?"}</h2>
<p class="hint">${w}</p>
${e.engine?p:u`<div class="words" role="group" aria-label="Words of the ${t.of}">
${n.map((b,g)=>d.includes(g)?u`<button
class="word"
aria-pressed=${g===h?"true":"false"}
@click=${()=>So(e,g)}
>
<bdi>${b}</bdi>
</button>`:u`<span class="word plain"><bdi>${b}</bdi></span>`)}
</div>`}
<div class="bar">
${v(t.one,o.map((b,g)=>[g,i(g)]),r,b=>e.set(s==="written"?{row:b}:{next:b}))}
</div>
<section class="panel">
<p class="summary" data-change>${Ys(t,m,h)}</p>
${a.translation.length?u`<h3>Written from the source as it is</h3>
<p class="sentence"><bdi>${a.translation.join(" ")}</bdi></p>
${m.translation?u`<h3>${f?"Written now":u`Written without ${x}`}</h3>
<p class="sentence">${_o(a.translation,m.translation)}</p>`:p}`:p}
${t.moves?u`<h3>${t.moves}</h3>
${Mo(t,m)}`:p}
</section>
<div class="columns">
<section class="panel">
<h3>${t.each}</h3>
${Gs(t.table,A("Word"),o.map((b,g)=>k(i(g),m,g)),r)}
</section>
${f?p:u`<section class="panel">
<h3>“<bdi>${i(r)}</bdi>” without each word</h3>
${Gs("Erasures",A("Without"),d.map(b=>k(n[b],c[b],r)),d.indexOf(h))}
</section>`}
</div>
<p class="hint">
${t.says} An erased word keeps its place and has the mean embedding of the
${s==="written"?"sentence":"text"}'s words. ${t.ends}
</p>
`}function Ys({kind:e,source:t,follow:s,named:n,numbers:o,written:r,unchanged:i,all:l},a,c){let d=o(a)[r],h=l?"As changed":`Without \u201C${t[c]}\u201D`;if(e==="vectors"){let x=s.map((b,g)=>g).filter(b=>b!==c),k=x[O(x.map(b=>-o(a)[b]),1)[0]],A=k===void 0?"":k===r?"; that of no other word moves more":`; of the other words that of \u201C${n(k)}\u201D moves most (${o(a)[k].toFixed(3)})`;return`${h}, the vector of \u201C${n(r)}\u201D has a cosine of ${d.toFixed(3)} with the one before${A}.`}if(e==="next"&&!l&&r<c)return`The probability of \u201C${n(r)}\u201D stays ${d.toFixed(3)}: the model predicts it before it reads \u201C${t[c]}\u201D.`;let[f,m]=a.likeliest[r][0],$=o(i)[r],w=d<m?`; most probable there is \u201C${f}\u201D (${m.toFixed(3)})`:"";return`${h}, the probability of \u201C${n(r)}\u201D is ${Ks(d,$)} instead of ${Ks($,d)}${w}.`}function Ks(e,t){return e.toFixed(3)===t.toFixed(3)?e.toFixed(6):e.toFixed(3)}function Mo({kind:e,follow:t,named:s,numbers:n,unchanged:o},r){let i=t.map((c,d)=>n(r)[d]-n(o)[d]),l=Math.max(...i.map(Math.abs),.1),a=c=>e==="vectors"?n(r)[c].toFixed(3):i[c]===0?"0":Math.abs(i[c])<5e-4?"0.000":`${i[c]<0?"\u2212":"+"}${Math.abs(i[c]).toFixed(3)}`;return u`<div class="words" data-moves>
${t.map((c,d)=>u`<span class="scored"
><span class="word" .style=${it(i[d],l)}><bdi>${s(d)}</bdi></span>
<small>${a(d)}</small></span
>`)}
</div>`}function _o(e,t){let s=new Set(e);return t.map(n=>s.has(n)?u`<bdi>${n}</bdi> `:u`<mark><bdi>${n}</bdi></mark> `)}function Gs(e,t,s,n){return S(e,u`<table>
${T(...t)}
<tbody>
${s.map(([o,r,i,l],a)=>u`<tr class=${a===n?"chosen":""}>
<th scope="row"><bdi>${o}</bdi></th>
${r.map(c=>u`<td>${c.toFixed(3)}</td>`)}
<td>
<meter
min="0"
max="1"
value=${String(i)}
aria-label=${t.length>2?"probability":"cosine"}
></meter>
${i.toFixed(3)}
</td>
${l.map(c=>u`<td><bdi>${c}</bdi></td>`)}
</tr>`)}
</tbody>
</table>`)}function So(e,t){e.state.changed=t;let s=Qs(e);e.set({changed:t,said:Ys(s,s.erased[t],t)})}var Xs="Reading\u2026";function Zs(e){let{live:t}=e.source.header;return u`<form class="live" @submit=${s=>To(e,s)}>
<label for="sentence">${t.label}</label>
<input id="sentence" name="text" .value=${t.text} maxlength="4000" autocomplete="off" />
<button ?disabled=${e.state.busy===Xs}>Read</button>
<span role="alert">${e.state.busy}</span>
</form>`}async function Ie(e,t){let s=await fetch(e,{method:"POST",headers:{"Content-Type":"application/json"},body:JSON.stringify({text:t})}).catch(()=>{throw new Error("The server has ended; start it again.")}),n=await s.json();if(!s.ok)throw new Error(n.error);return n}async function To(e,t){t.preventDefault();let s=new FormData(t.target).get("text");if(!s.trim()){e.set({busy:"The sentence is empty; write one."});return}e.set({busy:Xs});try{let n=await Ie("read",s);e.state.busy="",await e.replace(new F(n.header,n.arrays))}catch(n){e.set({busy:n.message})}}var nt=(e,t)=>Math.floor(e/t),tn=(e,t)=>e-t*nt(e,t),Eo=e=>t=>e.some(([s,n])=>t>=s&&t<=n),nn={full:[[],()=>()=>!0],causal:[[],()=>(e,t)=>t<=e],sliding_window:[["size"],e=>(t,s)=>Math.abs(t-s)<=e>>1],causal_window:[["size"],e=>(t,s)=>s<=t&&t-s<e],diagonals:[["back","ahead"],(e=null,t=null)=>(s,n)=>(e===null||n-s>=-e)&&(t===null||n-s<=t)],prefix:[["length"],e=>(t,s)=>s<e],key_span:[["start","stop"],(e=0,t=null)=>(s,n)=>n>=e&&(t===null||n<t)],lattice:[["stride"],e=>(t,s)=>(t-s)%e===0],strided:[["stride","local"],(e,t=!0)=>(s,n)=>(s-n)%e===0||t&&Math.abs(s-n)<e],dilated_window:[["size","dilation"],(e,t)=>(s,n)=>(s-n)%t===0&&Math.abs(s-n)<=t*(e>>1)],same_block:[["size","offset"],(e,t=0)=>(s,n)=>nt(s-t,e)===nt(n-t,e)],summary:[["stride","last"],(e,t=1)=>(s,n)=>tn(n,e)>=e-t],fixed:[["stride","summary","local"],(e,t=1,s=!0)=>(n,o)=>tn(o,e)>=e-t||s&&nt(n,e)===nt(o,e)],random_blocks:[["count","block","seed","past"],Oo]},We={key_set:e=>(t,s)=>e(s),query_set:e=>t=>e(t),global_tokens:e=>(t,s)=>e(t)||e(s)},Co=[...Object.keys(nn),...Object.keys(We),"per_head"],en={all:null,true:!0,false:!1},je=class{constructor(t){this.text=t,this.words=[];let s=/\s*([^\W\d]\w*|-?\d+(?!\w|\.\d)|\.\.|[()&|~,=])/y,n=t.trimEnd().length;for(;s.lastIndex<n;){let o=s.lastIndex,r=s.exec(t);if(!r)throw this.error(`\u201C${t.slice(o).trim().slice(0,20)}\u201D is not understood`);this.words.push(r[1])}this.at=0}error(t){return new Error(`The pattern \u201C${this.text.slice(0,80)}\u201D cannot be read: ${t}; an example is \u201Ccausal & sliding_window(4)\u201D.`)}take(t){return this.words[this.at]!==t?!1:(this.at+=1,!0)}need(t){if(!this.take(t))throw this.error(`\u201C${t}\u201D is missing`)}whole(){let t=this.either();if(this.at<this.words.length)throw this.error(`\u201C${this.words[this.at]}\u201D follows a pattern that is complete`);return t}either(){let t=[this.both()];for(;this.take("|");)t.push(this.both());return t.length===1?t[0]:(...s)=>t.some(n=>n(...s))}both(){let t=[this.single()];for(;this.take("&");)t.push(this.single());return t.length===1?t[0]:(...s)=>t.every(n=>n(...s))}single(){if(this.take("~")){let r=this.single();return(...i)=>!r(...i)}if(this.take("(")){let r=this.either();return this.need(")"),r}let t=this.words[this.at];if(!Co.includes(t))throw this.error(t?`there is no pattern \u201C${t.slice(0,40)}\u201D here`:"a pattern is missing");if(this.at+=1,t==="per_head"){let r=this.listed(()=>this.either());return(i,l,a,c)=>r[c](i,l,a,c)}if(Object.hasOwn(We,t))return We[t](Eo(this.listed(()=>this.run())));let[s,n]=nn[t],o=[];for(let[r,i]of this.listed(()=>this.argument(),s)){let l=r===null?o.length:s.indexOf(r);if(l<0||l>=s.length)throw this.error(`${t} takes (${s.join(", ")})`);o[l]=i}if(o.length<n.length)throw this.error(`${t} takes (${s.join(", ")})`);return n(...o)}listed(t){let s=[];if(this.take("("))for(;!this.take(")");)s.length&&this.need(","),s.push(t());return s}argument(){return this.words[this.at+1]!=="="?[null,this.value()]:(this.at+=2,[this.words[this.at-2],this.value()])}value(){let t=this.words[this.at];return Object.hasOwn(en,t)?en[this.words[this.at++]]:this.number()}number(){let t=this.words[this.at];if(!/^-?\d{1,18}$/.test(t??""))throw this.error("a whole number is missing");return this.at+=1,Number(t)}run(){let t=this.number();return[t,this.take("..")?this.number():t]}};function Oo(e,t=64,s=0,n=!1){let o=new Map;return(r,i,l)=>{let a=nt(r,t),c=n?a+1:Math.ceil(l/t),d=nt(i,t);if(c<=e)return d<c;let h=`${a} ${c}`;return o.has(h)||o.set(h,No(e,BigInt(s),BigInt(a),c)),o.get(h).has(d)}}function No(e,t,s,n){let o=new Set;for(let r=0;r<e;r+=1){let i=n-e+r,l=Fo(t,s,BigInt(r),BigInt(i+1));o.add(o.has(l)?i:l)}return o}var Xt=e=>BigInt.asUintN(64,e);function Fo(e,t,s,n){let o=sn(Xt((t+1n)*0x9e3779b97f4a7c15n+e)),r=sn(Xt(o+(s+1n)*0xc2b2ae3d27d4eb4fn));return Number((r>>32n)*n>>32n)}function sn(e){return e=Xt((e^e>>30n)*0xbf58476d1ce4e5b9n),e=Xt((e^e>>27n)*0x94d049bb133111ebn),e^e>>31n}function on(e){let t=new je(e).whole(),s=e.includes("per_head"),n=new Map;return(o,r,i)=>{let l=`${o} ${r} ${s?i:""}`,a=n.get(l);return a||(a=Int32Array.from({length:r},(c,d)=>d).filter(c=>t(o,c,r,i)),n.size>2e4&&n.clear(),n.set(l,a)),a}}var Lo=["no pair is allowed","some pairs are allowed","all pairs are allowed"],He=100,Io=["Length","Allowed pairs","Share of all","Computed here","Backend","A query may look at"],Wo="Draw with the mouse, or press the space bar, to allow pairs and to forbid them; the text of the pattern follows.";function an(e){let{patterns:t}=e.source.header,s=Math.min(e.state.pattern,t.length-1),n=e.engine?jo(e,t[s]):t[s],o=Math.min(e.state.panel,n.panels.length-1),r=[e.source.header.title,s,o,n.panels[o].text].join("/"),i=()=>e.pairs?.key===r&&e.pairs.source===e.source?e.pairs:null;i()||Bo(e,n,o,r);let l=i(),a=n.panels[o];return u`
<h2>Who may look at whom?</h2>
<div class="bar">
${t.length>1?v("Used in",t.map(({name:c},d)=>[d,c]),s,c=>e.set({pattern:Number(c),panel:0})):p}
${n.panels.length>1?v("Heads",n.panels.map(({heads:c},d)=>[d,c.join(", ")]),o,c=>e.set({panel:Number(c)})):p}
${n.drawable?Ht(e,n.drawable):p}
<span class="badge">counted exactly</span>
</div>
<p class="summary">
<code><bdi>${a.text}</bdi></code
>: ${te(a.pairs)} of ${te(n.q_len*n.k_len)} pairs
(${Be(a.pairs,n.q_len*n.k_len)}).
</p>
<p class="hint">
Rows: queries. Columns: keys.
${n.rows.length?"Sub-words, as the model reads them. ":""}${n.q_start?`Queries are at positions ${n.q_start} to ${n.q_start+n.q_len-1}. `:""}${n.tile>1?`Each cell stands for ${n.tile} \xD7 ${n.tile} pairs. `:""}${n.note}${n.drawable?Wo:""}
</p>
${l?Uo(e,l):u`<p class="hint">Unpacking…</p>`} ${Vo(n.tile>1)}
${n.growth.length?zo(n):p}
${l?u`<details class="twin">
<summary>The ${n.tile>1?"rows":"queries"} as a table</summary>
${Ko(l)}
</details>`:p}
`}function jo(e,t){let{source:{header:{model:s},answer:n}}=e,o=s.kinds.find(({name:w})=>t.name.startsWith(`${w},`)),{kind:r,rows:i,columns:l}=o,a=w=>n.pieces[w==="read"?"target":w],c=be(e,r),d=c||t.text,h=a(i),f=a(l),m=d.includes("per_head")?e.source.header.attentions.find(w=>w.kind===r).shape[1]:0,$=w=>{let x=ln(d,o,h.length,f.length,w[0]);return{heads:w,text:d,states:x,shape:[h.length,f.length],pairs:x.reduce((k,A)=>k+A,0)/2}};return{...t,text:d,rows:h,columns:f,q_len:h.length,k_len:f.length,drawable:o,growth:c?[]:t.growth.slice(1),panels:m?Array.from({length:m},(w,x)=>$([x])):[$([])]}}function ln(e,{unwritten:t},s,n,o=0){let r=new Uint8Array(s*n),i;try{i=on(t?`causal & (${e})`:e)}catch{return r}for(let l=0;l<s;l+=1)for(let a of i(l,n,o))r[l*n+a]=2;return r}var cn="\\(query_set\\([\\d., ]+\\) & key_set\\([\\d., ]+\\)\\)",Ho=new RegExp(`( \\| ${cn})+$`),Ro=new RegExp(`( & ~${cn})+$`);function Po(e){let t=e.replace(Ro,"");return(t!==e&&t.includes("|")?t.replace(/^\((.*)\)$/s,"$1"):t).replace(Ho,"")}function rn(e){let t=[];for(let s of e)t.at(-1)?.[1]===s-1?t.at(-1)[1]=s:t.push([s,s]);return t.map(([s,n])=>s===n?s:`${s}..${n}`).join(", ")}function Do({states:e,rows:t,columns:s,one:n,panel:o}){let r=Po(o.text),i=ln(r,n.drawable,t,s,o.heads[0]),l=[[],[]];[2,0].forEach((c,d)=>{let h=new Map;for(let f=0;f<t;f+=1){let m=rn(Array.from({length:s},($,w)=>w).filter($=>e[f*s+$]===c&&i[f*s+$]!==c));m&&h.set(m,[...h.get(m)??[],f])}for(let[f,m]of h)l[d].push(`(query_set(${rn(m)}) & key_set(${f}))`)});let a=[r,...l[0]].join(" | ");return[l[1].length&&a.includes("|")?`(${a})`:a,...l[1].map(c=>`~${c}`)].join(" & ")}async function Bo(e,t,s,n){let o=t.panels[s],[r,i]=o.shape,l=o.states??await e.source.bytes(o.place);e.pairs={key:n,source:e.source,one:t,panel:o,rows:r,columns:i,states:l},o.states||e.draw()}function Uo(e,t){let s=hn(e,t),n=Re(t,...s);return u`<div class="map" tabindex="-1">
<canvas
class="pattern"
tabindex="0"
role="application"
aria-roledescription="map of pairs"
aria-label="Pairs; arrow keys move. ${n}"
${M(o=>un(e,o,t))}
@pointermove=${o=>Pe(e,o,t)}
@click=${o=>Pe(e,o,t)}
@pointerdown=${o=>qo(e,o,t)}
@pointerup=${()=>Zt(e,t)}
@pointerleave=${()=>Zt(e,t)}
@keydown=${o=>{o.key===" "&&t.one.drawable&&(o.preventDefault(),De(t,s,!t.states[s[0]*t.columns+s[1]]),Zt(e,t));let r=N(o,s,[t.rows,t.columns]);r&&e.set({pair:r,said:Re(t,...r)})}}
></canvas>
<div class="cursor" aria-hidden="true"></div>
</div>
<p class="readout" data-readout>${n}</p>`}function hn(e,{rows:t,columns:s}){let[n,o]=e.state.pair??[0,0];return[Math.min(n,t-1),Math.min(o,s-1)]}function dn({states:e,columns:t,one:s},n){let o=[],r=0;for(let l=0;l<t;l+=1)e[n*t+l]&&(r+=1,o.length&&o[o.length-1][1]===l-1?o[o.length-1][1]=l:o.push([l,l]));let i=o.slice(0,6).map(([l,a])=>{let[c,d]=[l*s.tile,Math.min((a+1)*s.tile,s.k_len)-1];return c===d?`${c}`:`${c} to ${d}`}).join(", ");return{count:r,named:i+(o.length>6?` and ${o.length-6} more spans`:"")}}function Re(e,t,s){let{one:n,states:o,columns:r,rows:i}=e,l=o[t*r+s];if(n.tile>1){let $=(w,x)=>`${w*n.tile} to ${Math.min((w+1)*n.tile,x)-1}`;return`Queries ${$(t,n.q_len)}, keys ${$(s,n.k_len)}: ${Lo[l]}.`}let a=($,w)=>$.length?`${w} \u201C${$[w]}\u201D`:`${w}`,{count:c,named:d}=dn(e,t),h=0;for(let $=0;$<i;$+=1)h+=o[$*r+s]?1:0;let[f,m]=[a(n.rows,t),a(n.columns,s)];return`Query ${f} ${l?"may":"may not"} look at key ${m}. It may look at ${c} of ${r} keys${c?`: ${d}`:""}; ${h} of ${i} queries may look at this key.`}function un(e,t,s){let{one:n,rows:o,columns:r,states:i}=s,l=Ee(t,{rows:o,columns:r});n.rows.length||Object.assign(l,{named:!1,left:40,right:16,top:24});let{cell:a,left:c,right:d,top:h}=l,f=L(t);t.place=l;let m=W(t,c+r*a+d,h+o*a+2),$=a>=8?1:0,w=new OffscreenCanvas(r,o),x=w.getContext("2d");m.fillStyle=f.unseen,m.fillRect(c,h,r*a,o*a);for(let k=0;k<o;k+=1)for(let A=0;A<r;A+=1){let b=i[k*r+A];if(!b)continue;let[g,y,_,C]=$?[m,c+A*a,h+k*a,a-$]:[x,A,k,1];g.globalAlpha=b===1?.45:1,g.fillStyle=f.accent,g.fillRect(y,_,C,C)}m.globalAlpha=1,m.imageSmoothingEnabled=a<1,$||m.drawImage(w,c,h,r*a,o*a),l.named?Ce(m,n,l,f):Oe(m,{rows:o,columns:r},l,f,n.tile),yt(t,...hn(e,s))}function Pe(e,t,s){let n=t.currentTarget,[o,r]=Qt(t,s);if(o===void 0)return;yt(n,o,r),s.stroke&&(De(s,[o,r],s.stroke.allow),un(e,n,s));let i=Re(s,o,r);t.type==="click"?(t.pointerType==="touch"&&s.one.drawable&&De(s,[o,r],!s.states[o*s.columns+r]),Zt(e,s),e.set({pair:[o,r],said:i})):Ut(n.parentElement.nextElementSibling,i)}function qo(e,t,s){let[n,o]=Qt(t,s);n===void 0||!s.one.drawable||t.button||t.pointerType==="touch"||(s.stroke={allow:!s.states[n*s.columns+o]},Pe(e,t,s))}function De(e,[t,s],n){e.one.drawable.unwritten&&s>t||(e.states[t*e.columns+s]=n?2:0,e.drawn=!0)}function Zt(e,t){t.stroke=null,t.drawn&&(t.drawn=!1,jt(e,t.one.drawable.kind,Do(t)))}function Vo(e){return u`<p class="legend">
<i class="allowed"></i><span>${e?"all allowed":"may look"}</span>
${e?u`<i class="allowed some"></i><span>some allowed</span>`:p}
<i class="masked"></i><span>${e?"none allowed":"may not look"}</span>
</p>`}function zo(e){return u`<h3>How it grows with the length</h3>
${S("Pairs by length",u`<table data-growth>
${T(...Io)}
<tbody>
${e.growth.map(({length:t,pairs:s,of:n,computed:o,backend:r},i)=>{let l=i===0&&!e.drawable;return u`<tr>
<th scope="row">${te(t)}${l?" (shown)":""}</th>
<td>${te(s)}</td>
<td>${Be(s,n)}</td>
<td>${o===null?"\u2014":Be(o,1)}</td>
<td>${r}</td>
<td>${Go(s/(n/(l?e.k_len:t)))} keys</td>
</tr>`})}
</tbody>
</table>`)}
<p class="hint">
Computed here: the share of all pairs that the backend computes which regard chooses on this
machine's CPU for heads of 64 numbers; short rows are computed in whole blocks. Where allowed
pairs grow as fast as the length, attention takes linear time.
</p>`}function Ko(e){let{one:t,rows:s}=e,n=Array.from({length:Math.min(s,He)},(o,r)=>r);return u`${S("Queries as a table",u`<table>
<thead>
<tr>
<th scope="col">${t.tile>1?"Queries from":"Query"}</th>
${t.rows.length?u`<th scope="col">Word</th>`:p}
<th scope="col">${t.tile>1?"Tiles":"Keys"}</th>
<th scope="col">Which</th>
</tr>
</thead>
<tbody>
${n.map(o=>{let{count:r,named:i}=dn(e,o);return u`<tr>
<td>${o*t.tile}</td>
${t.rows.length?u`<th scope="row"><bdi>${t.rows[o]}</bdi></th>`:p}
<td>${r}</td>
<td>${i||"none"}</td>
</tr>`})}
</tbody>
</table>`)}
${s>He?u`<p class="hint">The first ${He} of ${s}.</p>`:p}`}function te(e){return e.toLocaleString("en")}function Go(e){return e.toLocaleString("en",{maximumFractionDigits:1})}function Be(e,t){let s=100*e/t;return`${s>=.1||s===0?s.toFixed(1):s.toPrecision(2)} %`}var se={erase:{title:"Erasure",says:"Each word is erased in turn. A positive number is how much the model's preference for the word falls."},gradients:{title:"Integrated gradients",says:"The preference for the word is divided among the words that were read. Negative numbers speak against it."},attention:{title:"Raw attention",says:"Where all heads look on average while the word is written. It does not say what the model uses."},rollout:{title:"Attention rollout",says:"Attention multiplied through all layers. A weak lens: it ignores what the layers compute."}},Qo=2,ee=200;function wn(e,t){let{header:s}=e.source;return s.written&&(e.engine||Object.keys(s.explained).length)?Jo(e):tr(e,t)}function Jo(e){let{header:t}=e.source,s=t.texts[t.written],n=h=>t.explained[h]||e.engine&&s[h]!=="<begin>"&&s[h]!=="<end>",o=n(e.state.place??t.chosen)?e.state.place??t.chosen:t.chosen,r=h=>e.set({place:h,row:h,said:Xo(t.explained[h])}),i=t.explained[o];i||ct(e);let l=u`<h2>What does this word depend on?</h2>
${e.engine&&t.texts.target?p:u` <p class="hint">Choose a ${t.texts.source?"written word":"word"}:</p>
<div class="words" role="group" aria-label="Words to explain">
${s.map((h,f)=>n(f)?u`<button
class="word"
aria-pressed=${f===Number(o)?"true":"false"}
@click=${()=>r(f)}
>
<bdi>${h}</bdi>
</button>`:u`<span class="word plain"><bdi>${h}</bdi></span>`)}
</div>`}`;if(!i?.length)return u`${l}
<p class="hint" role="status">
${i?"Nothing was read before this word.":"Computing what it depends on\u2026"}
</p>`;let a=i.find(h=>h.lens===(e.state.lens??"erase"))??i[0],c=i.find(h=>h.lens==="attention"),d=c&&c!==a?fn(e,c,u`<h3>${se.attention.title}</h3>`):p;return u`${l}
<p class="question">
Why <strong><bdi>${a.word}</bdi></strong> rather than ${Yo(a.others)}? Log odds
${a.log_odds.toFixed(2)}, probability ${a.probability.toFixed(3)} among these.
</p>
<div class="columns">
${fn(e,a,u`<h3>By a lens</h3>
${v("Lens",i.map(h=>[h.lens,se[h.lens].title]),a.lens,h=>e.set({lens:h}))}`)}
${d}
</div>
<p class="hint">
The words that <bdi>${a.word}</bdi> is compared with are those that the model found most
probable beside it, unless others were asked for. “<bdi>&lt;begin&gt;</bdi>” and
“<bdi>&lt;end&gt;</bdi>” are never erased.
</p> `}function Yo(e){return e.map((t,s)=>u`${s?s===e.length-1?" or ":", ":""}<bdi>${t}</bdi>`)}var Xo=e=>e?.length?gn(e[0]):"";function gn(e){let{title:t}=se[e.lens],s=i=>O(i.map(([,l])=>l),Qo).filter(l=>i[l][1]>0).map(l=>`\u201C${i[l][0]}\u201D (${Ue(e,i[l][1])})`).join(", then ")||"none of these words";if(e.lens!=="attention"&&e.lens!=="rollout")return`${t}: \u201C${e.word}\u201D depends most on ${s([...e.source,...e.written])}.`;let n=[[e.source,"in the source"],[e.written,"in what was written"]].filter(([i])=>i.length),o=n.map(([i,l])=>`${n.length>1?`${l} `:""}at ${s(i)}`).join("; "),r=n.length>1?" The weights of each side sum to 1.":"";return`${t}: \u201C${e.word}\u201D looks most ${o}.${r}`}function Ue(e,t){return e.lens==="attention"||e.lens==="rollout"?t.toFixed(2):`${t<0?"\u2212":"+"}${Math.abs(t).toFixed(2)}`}function fn(e,t,s){let n=Math.max(...[...t.source,...t.written].map(([,r])=>Math.abs(r)),0),o=[["In the source",t.source],["In what was already written",t.written]];return u`<section class="panel" data-lens=${t.lens}>
<div class="bar">${s}</div>
<p class="summary">${gn(t)}</p>
${o.map(([r,i])=>i.length?u`<h4>${r}</h4>
<div class="words">
${i.map(([l,a])=>Zo(e,t,l,a,n))}
</div>`:p)}
<p class="hint">${se[t.lens].says} <span class="faint">${t.cost}.</span></p>
</section>`}function Zo(e,t,s,n,o){let i=t.lens==="attention"||t.lens==="rollout"?at(o?n/o:0):it(n,o),l=`${s}: ${Ue(t,n)}`;if(t.lens==="erase"){let a=1/(1+Math.exp(-(t.log_odds-n)));l+=`; without it the probability of ${t.word} is ${a.toFixed(3)} instead of ${t.probability.toFixed(3)}`}return u`<span class="scored" title=${l}
><span class="word" .style=${i}><bdi>${s}</bdi></span>
<small>${Ue(t,n)}</small></span
>`}function tr(e,t){let{state:s}=e,{rows:n,columns:o}=e.words,r=t.row(s.row),i=r[O(r,1)[0]],[l,a]=mn(s.row,n.length),[c,d]=n===o?[l,a]:mn(O(r,1)[0],o.length);return u`
<h2>Where does this word look?</h2>
<p class="hint">
These are weights without a model, so they say where it looks and not what it uses.
${e.attention.sums??""}
</p>
<div class="bar">${j(e)} ${I(t)}</div>
<p class="hint">Choose a word (${e.attention.row_title})${$n(l,a,n.length)}:</p>
<div class="words" role="group" aria-label="Words">
${n.slice(l,a).map((h,f)=>u`<button
class="word"
aria-pressed=${l+f===s.row?"true":"false"}
@click=${()=>e.set({row:l+f})}
>
<bdi>${h}</bdi>
</button>`)}
</div>
<section class="panel">
<h3><bdi>${n[s.row]}</bdi> looks at</h3>
<div class="words">
${o.slice(c,d).map((h,f)=>u`<span class="scored">
<span class="word" .style=${at(i?r[c+f]/i:0)}
><bdi>${h}</bdi></span
>
<small>${r[c+f].toFixed(2)}</small></span
>`)}
</div>
<p class="hint">
${$n(c,d,o.length)} The row sums to ${er(r).toFixed(3)}; entropy
${t.entropy(s.row).toFixed(2)} nats.
</p>
</section>
`}function mn(e,t){if(t<=ee)return[0,t];let s=Math.min(Math.max(e-ee/2,0),t-ee);return[s,s+ee]}function $n(e,t,s){return t-e<s?` Words ${e} to ${t-1} of ${s} are shown.`:""}function er(e){let t=0;for(let s of e)t+=s;return t}function Ve({state:{motion:e}}){return e?e==="on":!matchMedia("(prefers-reduced-motion: reduce)").matches}function xt({follows:e={}},{rows:t,columns:s}){let n=o=>o?Math.min(e[qe(o)]??0,o.size-1):0;return n(t)*s.size+n(s)}var qe=({unit:e,labels:t,size:s})=>`${e} ${t??s}`;function ne(e,{rows:t,columns:s},n){e.follows={...e.follows,[qe(s)]:n%s.size,...t?{[qe(t)]:Math.floor(n/s.size)}:{}},e.draw()}function bn(e,t,s){let n=t.getBoundingClientRect(),{flight:o}=e;if(e.flight={step:s,box:n,text:t.textContent},!o||o.step===s||!Ve(e))return;let r=document.createElement("span");r.className="flying",r.textContent=o.text,t.closest(".step").append(r);let i=({left:l,top:a})=>({transform:`translate(${l}px, ${a}px)`});r.animate([i(o.box),i(n)],{duration:700,easing:"ease-in-out"}).finished.then(()=>r.remove(),()=>r.remove())}var sr="http://www.w3.org/1998/Math/MathML",nr=new Set(["math","mrow","mi","mn","mo","mtext","msub","msup","msubsup","mfrac","msqrt"]);function ze([e,...t]){let s=document.createElementNS(sr,nr.has(e)?e:"mtext");return e==="math"&&s.setAttribute("display","block"),e==="mo"&&"()[]|".includes(t[0])&&s.setAttribute("stretchy","false"),s.append(...t.map(n=>Array.isArray(n)?ze(n):n)),s}var q=16,pn=1024,Ke=20;function xn(e,t,s,n){if(n.words)return u`<ol class="words">
${n.words.map(x=>u`<li class="word"><bdi>${x}</bdi></li>`)}
</ol>`;let{values:o,rows:r,columns:i,only:l,before:a}=n,c=xt(e,n),d=x=>x.labels===null?null:t.record.labels[x.labels],h=l===null?p:u`<p class="hint">
Too many numbers to store for every word; these are those of the word that was followed
when the page was made.
</p>`;if(!r&&d(i)&&i.size>2*Ke)return u`${h}${or(s,n,d(i))}`;let f=r?Math.min(i.size,Math.max(Math.floor(pn/r.size),1)):Math.min(i.size,pn),m=i.size-f,$=r?Array.from({length:r.size},(x,k)=>({head:yn(r,d(r),k),from:k*i.size,to:k*i.size+f})):d(i)?[{head:"",from:0,to:f}]:Array.from({length:Math.ceil(f/q)},(x,k)=>({head:`${k*q} to ${Math.min((k+1)*q,f)-1}`,from:k*q,to:Math.min((k+1)*q,f)})),w=r||d(i);return u`${h}
${S("Numbers of the step",u`<table class="numbers">
<thead>
<tr>
<td></td>
${Array.from({length:w?f:Math.min(q,f)},(x,k)=>u`<th scope="col">
${w?u`<bdi>${yn(i,d(i),k)}</bdi>`:`+${k}`}
</th>`)}
</tr>
</thead>
<tbody>
${$.map(({head:x,from:k,to:A})=>u`<tr>
${x?u`<th scope="row"><bdi>${x}</bdi></th>`:u`<td></td>`}
${Array.from(o.subarray(k,A),(b,g)=>k+g===c?u`<td
class="followed"
.style=${Ge(s,b,n.most)}
title=${String(b)}
${M(y=>bn(e,y,s))}
>
${kt(b)}
</td>`:u`<td
.style=${Ge(s,b,n.most)}
title=${String(b)}
@click=${()=>ne(e,n,k+g)}
>
${kt(b)}
</td>`)}
</tr>`)}
</tbody>
</table>`)}
<p class="hint" data-followed>
The number
followed${a?u` was ${kt(a.value)} in “${a.title}”, and`:""} is
${kt(o[c])}. Press another to follow it, or Shift and an arrow.
</p>
${m?u`<p class="hint">… ${m} more ${i.unit} in each row.</p>`:p}`}function yn(e,t,s){return t?t[s]:String(s)}function Ge(e,t,s){return t===-1/0?"":e.scale==="weights"?at(t):e.scale==="signed"?it(t,s):""}function kt(e){if(e===-1/0)return"\u2212\u221E";if(Number.isInteger(e)&&Math.abs(e)<1e6)return String(e).replace("-","\u2212");let t=Math.abs(e)<1e3?e.toFixed(3):e.toPrecision(3);return(Number(t)===0?t.replace("-",""):t).replace("-","\u2212")}function or(e,{values:t,most:s},n){let o=O(t,Ke);return u`${S("The largest numbers of the step",u`<table class="numbers">
${T("Id","Sub-word","Number")}
<tbody>
${o.map(r=>u`<tr>
<td>${r}</td>
<th scope="row"><bdi>${n[r]}</bdi></th>
<td .style=${Ge(e,t[r],s)} title=${String(t[r])}>
${kt(t[r])}
</td>
</tr>`)}
</tbody>
</table>`)}
<p class="hint">The ${Ke} largest of ${t.length.toLocaleString("en")}.</p>`}var rr=1800;function kn(e){let t=lr(e);if(!t)return u`<h2>Step by step</h2>
<p class="hint" role="status">${e.walkFailed??"Computing every step\u2026"}</p>`;let{steps:s,note:n}=t.record;if(!s.length)return u`<h2>Step by step</h2>
<p class="hint">${n}</p>`;let o=Math.min(e.state.step,s.length-1),r=s[o],i=[...new Set(s.map(({section:h})=>h))],l=cr(e,t.record),a=`${o}/${l.join()}`;(e.stepShown?.key!==a||e.stepShown.walk!==t)&&hr(e,t,r,l,a);let c=e.stepShown?.key===a&&e.stepShown.walk===t?e.stepShown:null,d=e.engine&&e.source.header.walk&&(e.source.base||e.source.given.source!==e.source.header.model.text);return u`
<h2>Step by step</h2>
${d?ir(e.source.header.model.text):p}
<div class="bar">
${v("Part",i.map((h,f)=>[f,h]),i.indexOf(r.section),h=>At(e,t,s.findIndex(({section:f})=>f===i[h])))}
${Qe(t.record).map((h,f)=>v(f?"and of the source":"Word followed",t.record.labels[h].map((m,$)=>[$,m]),l[f],m=>e.set({followed:Object.assign([...l],{[f]:Number(m)})})))}
<button @click=${()=>At(e,t,o-1)} ?disabled=${o===0}>Previous step</button>
<button @click=${()=>At(e,t,o+1)} ?disabled=${o===s.length-1}>
Next step
</button>
<button
aria-pressed=${String(!!e.runs)}
@click=${()=>ur(e,t)}
?disabled=${o===s.length-1}
>
${e.runs?"Stop":"Run"}
</button>
<label class="choice"
><input
type="checkbox"
.checked=${Ve(e)}
@change=${h=>e.set({motion:h.target.checked?"on":"off"})}
/><span>Motion</span></label
>
<span class="badge">step ${o+1} of ${s.length}</span>
</div>
<section
class="panel step"
tabindex="0"
aria-roledescription="step"
aria-label="Left and right arrows change the step. ${An(r)}"
@keydown=${h=>mr(e,h,t,o)}
>
<h3>${r.title}</h3>
${r.says?u`<p>${r.says}</p>`:p} ${r.formula?ar(r):p}
<pre><code>${r.line}</code></pre>
<p class="hint" data-shape>${fr(r)}</p>
${c?xn(e,t,r,c):u`<p class="hint">Unpacking…</p>`}
</section>
<p class="hint">
${n} ${t.record.checks} results were compared with the model's own; the largest
difference is ${t.record.difference.toExponential(1)}. Numbers are computed with 64 bits
and stored with 32. Sentences that name a word are about
“<bdi>${t.record.words[t.record.word]}</bdi>”.
</p>
`}function ir(e){return u`<p class="hint">
These steps were stored when the page was made, for “<bdi>${e}</bdi>” and the model as
trained.
</p>`}function ar({formula:e}){let t=M(s=>s.replaceChildren(ze(e)));return u`<div class="formula" ${t}></div>`}function lr(e){let{source:t}=e;if(t.header.walk)return t.walk??={record:t.header.walk,source:t};if(t.walk||e.walkAsked===t)return t.walk;e.walkAsked=t,e.walkFailed=void 0,Ie("walk",t.given?.source??t.header.live.text).then(s=>{t.walk={record:s.walk,source:new F({},s.arrays)},e.draw()},s=>{e.walkFailed=s.message,e.draw()})}function Qe({steps:e,labels:t,words:s}){let n=t.findIndex(r=>r.length===s.length&&r.every((i,l)=>i===s[l])),o=new Set(n<0?[]:[n]);for(let{axes:r}of e)for(let i of r)i.unit==="words"&&i.chosen!==null&&i.labels!==null&&o.add(i.labels);return[...o]}function cr(e,t){return Qe(t).map((s,n)=>{let o=n===0?t.word:t.steps.flatMap(({axes:i})=>i).find(i=>i.labels===s&&i.chosen!==null).chosen,r=e.state.followed?.[n]??o;return Math.min(r,t.labels[s].length-1)})}async function hr(e,t,s,n,o){if(e.stepAsked===o&&e.stepFor===t)return;if(Object.assign(e,{stepAsked:o,stepFor:t}),s.words){Object.assign(e,{stepShown:{key:o,walk:t,words:s.words}}),e.draw();return}let r=await t.source.bytes(s.place),i=new Float32Array(r.buffer),l=Qe(t.record),{axes:a}=s,c=null,d=i;if(s.only!==void 0)c=s.only,a=a.filter((x,k)=>k!==c);else if(a.length>1){let x=a.findIndex(({chosen:k})=>k!==null);if(x>=0){let k=n[Math.max(l.indexOf(a[x].labels),0)];d=dr(i,a.map(({size:A})=>A),x,Math.min(k,a[x].size-1)),a=a.filter((A,b)=>b!==x)}}let h=a[a.length-1],f=0;for(let x of i)Number.isFinite(x)&&(f=Math.max(f,Math.abs(x)));let m=a.length>1?a[a.length-2]:null,{stepShown:$}=e,w=$?.values&&$.walk===t&&$.step!==s?{value:$.values[xt(e,$)],title:$.step.title}:null;e.stepShown={key:o,walk:t,step:s,values:d,rows:m,columns:h,most:f,only:c,before:w},e.draw()}function dr(e,t,s,n){let o=t.slice(s+1).reduce((l,a)=>l*a,1),r=t.slice(0,s).reduce((l,a)=>l*a,1),i=new Float32Array(r*o);for(let l=0;l<r;l+=1){let a=(l*t[s]+n)*o;i.set(e.subarray(a,a+o),l*o)}return i}function ur(e,t){let s=()=>{let n=e.state.view!=="walk"||e.state.step>=t.record.steps.length-1;e.runs=n?null:setTimeout(s,rr),n?e.draw():At(e,t,e.state.step+1)};return e.runs?(clearTimeout(e.runs),e.runs=null,e.draw()):s()}function fr(e){let t=e.axes.map(({size:s,unit:n})=>`${s.toLocaleString("en")} ${s===1?n.replace(/s$/,""):n}`).join(" \xD7 ");return e.words||e.axes.length<2?t:`${t}; shown for the followed word`}function An(e){return`${e.section}: ${e.title}.`}function At(e,t,s){let{steps:n}=t.record,o=Math.min(Math.max(s,0),n.length-1);e.set({step:o,said:`Step ${o+1} of ${n.length}. ${An(n[o])}`})}function mr(e,t,s,n){if(t.target!==t.currentTarget)return;let{steps:o}=s.record,r=e.stepShown,i={ArrowRight:1,ArrowLeft:-1,ArrowDown:r?.rows?r.columns.size:q,ArrowUp:r?.rows?-r.columns.size:-q}[t.key];if(t.shiftKey&&i&&r?.values)return t.preventDefault(),ne(e,r,Math.min(Math.max(xt(e,r)+i,0),r.values.length-1));let l=c=>{for(let d=n+c;d>=0&&d<o.length;d+=c)if(o[d].section!==o[n].section)return c>0?d:o.findIndex(({section:h})=>h===o[d].section);return c>0?o.length-1:0},a={ArrowRight:n+1,ArrowLeft:n-1,Home:0,End:o.length-1,PageDown:l(1),PageUp:l(-1)}[t.key];if(a!==void 0)return t.preventDefault(),At(e,s,a)}var vn=({attentions:e})=>e.findIndex(({rows:t,columns:s})=>t==="target"&&s==="source"),vt=e=>e.attentions.length>0,ot={reader:{title:"Reader",draw:wn,fits:vt},heads:{title:"Heads",draw:Os,fits:vt},map:{title:"Heat map",draw:Ps,fits:vt},links:{title:"Links",draw:qs,fits:vt},steps:{title:"Translation",draw:zs,fits:e=>vn(e)>=0,kind:vn},change:{title:"What if",draw:Js,fits:e=>!!e.changes},pattern:{title:"Pattern",draw:an,fits:e=>e.patterns.length>0},walk:{title:"Walk-through",draw:kn,fits:e=>!!(e.walk??e.live?.walk)},compare:{title:"Compare",draw:Es,fits:vt}},Mn=["view","kind","layer","head","row","scale","theme","share","sort","pattern","panel","step","motion","text",...Object.keys(K)],oe=class{constructor(t,s,n,o=null){Object.assign(this,{element:t,source:s,engine:o,stored:s.stored}),this.state={view:"reader",kind:0,layer:0,head:"mean",row:s.header.chosen,column:0,scale:"linear",theme:"system",share:.8,sort:"layer",said:"",busy:"",pattern:0,panel:0,step:0},this.state.layer=(s.header.attentions[0]?.shape[0]??1)-1,Object.assign(this.state,o?{text:s.given.source,...K}:{},n),this.#t()}get attention(){return this.source.header.attentions[this.state.kind]}get words(){return this.source.words(this.attention)}set(t){return Object.assign(this.state,t),this.#t(),this.#e(),this.draw()}replace(t){let s=this.engine&&t.given.source===this.source.given.source;this.source=t;for(let n of s?[]:["place","changed","next","pair","followed"])delete this.state[n];return this.set({...s?{}:{kind:this.engine?this.state.kind:0,row:t.header.chosen,column:0},said:t.header.title})}async draw(){let{kind:t,layer:s,head:n}=this.state,o=this.turn=(this.turn??0)+1,r=this.attention?await this.source.head(t,s,n):null;o===this.turn&&(document.documentElement.dataset.theme=this.state.theme,ls($r(this,r),this.element),this.element.dataset.ready="yes")}#t(){let{state:t}=this,{header:s}=this.source,n=(a,c)=>Math.min(Math.max(Math.trunc(Number(a))||0,0),Math.max(c-1,0));(!Object.hasOwn(ot,t.view)||!ot[t.view].fits(s))&&(t.view=Object.keys(ot).find(a=>ot[a].fits(s))),t.kind=n(ot[t.view].kind?.(s)??t.kind,s.attentions.length);let[o,r,i,l]=this.attention?.shape??[1,1,1,1];t.layer=n(t.layer,o),t.head=r===1?0:t.head==="mean"?"mean":n(t.head,r),t.row=n(t.row,i),t.column=n(t.column,l),t.share=Math.min(Math.max(Number(t.share)||.8,.05),1),t.pattern=n(t.pattern,s.patterns.length),t.step=Math.max(Math.trunc(Number(t.step))||0,0),t.panel=n(t.panel,s.patterns[t.pattern]?.panels.length??1),Object.hasOwn(Nt,t.scale)||(t.scale="linear"),["system","light","dark"].includes(t.theme)||(t.theme="system")}#e(){let t=Object.fromEntries(Mn.filter(n=>n in this.state).map(n=>[n,String(this.state[n])]));parent!==window&&parent.postMessage({regard:t},"*");let s=new URLSearchParams(t);try{history.replaceState(null,"",`#${s}`)}catch{}}};function _n(e){return Sn(Object.fromEntries(new URLSearchParams(e.slice(1))))}function Sn(e){return Object.fromEntries(Mn.filter(t=>Object.hasOwn(e,t)).map(t=>[t,String(e[t])]))}function $r(e,t){let{state:s,source:n}=e;return u`
<header class="top">
<h1 class=${e.engine?"said":""}><bdi>${n.header.title}</bdi></h1>
${e.engine?xs(e):n.header.live?Zs(e):p}
<nav aria-label="Views">
${Object.entries(ot).filter(([,o])=>o.fits(n.header)).map(([o,r])=>u`<button
aria-current=${o===s.view?"page":"false"}
@click=${()=>e.set({view:o})}
>
${r.title}
</button>`)}
</nav>
</header>
<main>${ot[s.view].draw(e,t)}</main>
<p class="said" role="status" aria-live="polite">${s.said}</p>
<footer>
${n.header.notes.map(o=>u`<p>${o}</p>`)}
<p>
Attention alone is not an explanation: a model can look at a word without using it. Made by
regard ${n.header.version}; this page loads nothing from a network.
</p>
${v("Colours",Object.entries({system:"of the system",light:"light",dark:"dark"}),s.theme,o=>e.set({theme:o}))}
</footer>
`}async function wr(e,t){e.textContent="Unpacking the model\u2026";let s=new Wt(t.header),n=_n(location.hash),o={text:t.header.model.text,...K};window.regard={ready:s.ready,run:a=>s.run(a),engine:s,shown:[],coloured:[]};let[r,i]=[null,""];try{r=await s.play(t,{...o,...n})}catch(a){i=a.message;for(let c of Object.keys(o))delete n[c];r=await s.play(t,o)}(await s.ready).checked||(i||="This address is not secure (https), so the browser could not check the hash of the model."),e.replaceChildren();let l=new oe(e,r,n,s);return await l.set({busy:i}),window.regard.opened=performance.now(),ct(l),l}async function gr(e){let t=$s();if(t.header.model)return wr(e,t);e.replaceChildren();let s=new oe(e,t,_n(location.hash));return await s.draw(),s}var Mt=document.getElementById("regard-explorer");Mt&&gr(Mt).then(e=>{addEventListener("resize",()=>e.draw()),addEventListener("message",({source:t,data:s})=>{t===parent&&parent!==window&&s?.regard instanceof Object&&e.set(Sn(s.regard))})},e=>{Mt.textContent=e.message,Mt.setAttribute("role","alert"),Mt.dataset.ready="failed"});export{oe as App};
/*! Bundled license information:

lit-html/lit-html.js:
lit-html/directive.js:
lit-html/async-directive.js:
  (**
   * @license
   * Copyright 2017 Google LLC
   * SPDX-License-Identifier: BSD-3-Clause
   *)

lit-html/directive-helpers.js:
  (**
   * @license
   * Copyright 2020 Google LLC
   * SPDX-License-Identifier: BSD-3-Clause
   *)
*/
