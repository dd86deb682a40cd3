/* sources 539689ec5ea8e2633b606882afc06d94fe9ae514d165e90accdba608285bb388 */
var _e=globalThis,_n=t=>t,Ht=_e.trustedTypes,Tn=Ht?Ht.createPolicy("lit-html",{createHTML:t=>t}):void 0,jn="$lit$",Q=`lit$${Math.random().toFixed(9).slice(2)}$`,Wn="?"+Q,So=`<${Wn}>`,at=document,kt=()=>at.createComment(""),vt=t=>t===null||typeof t!="object"&&typeof t!="function",Te=Array.isArray,_o=t=>Te(t)||typeof t?.[Symbol.iterator]=="function",xe=`[ 	
\f\r]`,xt=/<(?:(!--|\/[^a-zA-Z])|(\/?[a-zA-Z][^>\s]*)|(\/?$))/g,En=/-->/g,On=/>/g,rt=RegExp(`>|${xe}(?:([^\\s"'>=/]+)(${xe}*=${xe}*(?:[^ 	
\f\r"'\`<>=]|("|')|))|$)`,"g"),Cn=/'/g,Nn=/"/g,In=/^(?:script|style|textarea|title)$/i,Ee=t=>(e,...n)=>({_$litType$:t,strings:e,values:n}),u=Ee(1),Ta=Ee(2),Ea=Ee(3),At=Symbol.for("lit-noChange"),p=Symbol.for("lit-nothing"),Ln=new WeakMap,it=at.createTreeWalker(at,129);function Pn(t,e){if(!Te(t)||!t.hasOwnProperty("raw"))throw Error("invalid template strings array");return Tn!==void 0?Tn.createHTML(e):e}var To=(t,e)=>{let n=t.length-1,s=[],o,r=e===2?"<svg>":e===3?"<math>":"",i=xt;for(let a=0;a<n;a++){let l=t[a],c,h,d=-1,f=0;for(;f<l.length&&(i.lastIndex=f,h=i.exec(l),h!==null);)f=i.lastIndex,i===xt?h[1]==="!--"?i=En:h[1]!==void 0?i=On:h[2]!==void 0?(In.test(h[2])&&(o=RegExp("</"+h[2],"g")),i=rt):h[3]!==void 0&&(i=rt):i===rt?h[0]===">"?(i=o??xt,d=-1):h[1]===void 0?d=-2:(d=i.lastIndex-h[2].length,c=h[1],i=h[3]===void 0?rt:h[3]==='"'?Nn:Cn):i===Nn||i===Cn?i=rt:i===En||i===On?i=xt:(i=rt,o=void 0);let m=i===rt&&t[a+1].startsWith("/>")?" ":"";r+=i===xt?l+So:d>=0?(s.push(c),l.slice(0,d)+jn+l.slice(d)+Q+m):l+Q+(d===-2?a:m)}return[Pn(t,r+(t[n]||"<?>")+(e===2?"</svg>":e===3?"</math>":"")),s]},Mt=class t{constructor({strings:e,_$litType$:n},s){let o;this.parts=[];let r=0,i=0,a=e.length-1,l=this.parts,[c,h]=To(e,n);if(this.el=t.createElement(c,s),it.currentNode=this.el.content,n===2||n===3){let d=this.el.content.firstChild;d.replaceWith(...d.childNodes)}for(;(o=it.nextNode())!==null&&l.length<a;){if(o.nodeType===1){if(o.hasAttributes())for(let d of o.getAttributeNames())if(d.endsWith(jn)){let f=h[i++],m=o.getAttribute(d).split(Q),w=/([.?@])?(.*)/.exec(f);l.push({type:1,index:r,name:w[2],strings:m,ctor:w[1]==="."?ve:w[1]==="?"?Ae:w[1]==="@"?Me:gt}),o.removeAttribute(d)}else d.startsWith(Q)&&(l.push({type:6,index:r}),o.removeAttribute(d));if(In.test(o.tagName)){let d=o.textContent.split(Q),f=d.length-1;if(f>0){o.textContent=Ht?Ht.emptyScript:"";for(let m=0;m<f;m++)o.append(d[m],kt()),it.nextNode(),l.push({type:2,index:++r});o.append(d[f],kt())}}}else if(o.nodeType===8)if(o.data===Wn)l.push({type:2,index:r});else{let d=-1;for(;(d=o.data.indexOf(Q,d+1))!==-1;)l.push({type:7,index:r}),d+=Q.length-1}r++}}static createElement(e,n){let s=at.createElement("template");return s.innerHTML=e,s}};function wt(t,e,n=t,s){if(e===At)return e;let o=s!==void 0?n._$Co?.[s]:n._$Cl,r=vt(e)?void 0:e._$litDirective$;return o?.constructor!==r&&(o?._$AO?.(!1),r===void 0?o=void 0:(o=new r(t),o._$AT(t,n,s)),s!==void 0?(n._$Co??=[])[s]=o:n._$Cl=o),o!==void 0&&(e=wt(t,o._$AS(t,e.values),o,s)),e}var ke=class{constructor(e,n){this._$AV=[],this._$AN=void 0,this._$AD=e,this._$AM=n}get parentNode(){return this._$AM.parentNode}get _$AU(){return this._$AM._$AU}u(e){let{el:{content:n},parts:s}=this._$AD,o=(e?.creationScope??at).importNode(n,!0);it.currentNode=o;let r=it.nextNode(),i=0,a=0,l=s[0];for(;l!==void 0;){if(i===l.index){let c;l.type===2?c=new St(r,r.nextSibling,this,e):l.type===1?c=new l.ctor(r,l.name,l.strings,this,e):l.type===6&&(c=new Se(r,this,e)),this._$AV.push(c),l=s[++a]}i!==l?.index&&(r=it.nextNode(),i++)}return it.currentNode=at,o}p(e){let n=0;for(let s of this._$AV)s!==void 0&&(s.strings!==void 0?(s._$AI(e,s,n),n+=s.strings.length-2):s._$AI(e[n])),n++}},St=class t{get _$AU(){return this._$AM?._$AU??this._$Cv}constructor(e,n,s,o){this.type=2,this._$AH=p,this._$AN=void 0,this._$AA=e,this._$AB=n,this._$AM=s,this.options=o,this._$Cv=o?.isConnected??!0}get parentNode(){let e=this._$AA.parentNode,n=this._$AM;return n!==void 0&&e?.nodeType===11&&(e=n.parentNode),e}get startNode(){return this._$AA}get endNode(){return this._$AB}_$AI(e,n=this){e=wt(this,e,n),vt(e)?e===p||e==null||e===""?(this._$AH!==p&&this._$AR(),this._$AH=p):e!==this._$AH&&e!==At&&this._(e):e._$litType$!==void 0?this.$(e):e.nodeType!==void 0?this.T(e):_o(e)?this.k(e):this._(e)}O(e){return this._$AA.parentNode.insertBefore(e,this._$AB)}T(e){this._$AH!==e&&(this._$AR(),this._$AH=this.O(e))}_(e){this._$AH!==p&&vt(this._$AH)?this._$AA.nextSibling.data=e:this.T(at.createTextNode(e)),this._$AH=e}$(e){let{values:n,_$litType$:s}=e,o=typeof s=="number"?this._$AC(e):(s.el===void 0&&(s.el=Mt.createElement(Pn(s.h,s.h[0]),this.options)),s);if(this._$AH?._$AD===o)this._$AH.p(n);else{let r=new ke(o,this),i=r.u(this.options);r.p(n),this.T(i),this._$AH=r}}_$AC(e){let n=Ln.get(e.strings);return n===void 0&&Ln.set(e.strings,n=new Mt(e)),n}k(e){Te(this._$AH)||(this._$AH=[],this._$AR());let n=this._$AH,s,o=0;for(let r of e)o===n.length?n.push(s=new t(this.O(kt()),this.O(kt()),this,this.options)):s=n[o],s._$AI(r),o++;o<n.length&&(this._$AR(s&&s._$AB.nextSibling,o),n.length=o)}_$AR(e=this._$AA.nextSibling,n){for(this._$AP?.(!1,!0,n);e!==this._$AB;){let s=_n(e).nextSibling;_n(e).remove(),e=s}}setConnected(e){this._$AM===void 0&&(this._$Cv=e,this._$AP?.(e))}},gt=class{get tagName(){return this.element.tagName}get _$AU(){return this._$AM._$AU}constructor(e,n,s,o,r){this.type=1,this._$AH=p,this._$AN=void 0,this.element=e,this.name=n,this._$AM=o,this.options=r,s.length>2||s[0]!==""||s[1]!==""?(this._$AH=Array(s.length-1).fill(new String),this.strings=s):this._$AH=p}_$AI(e,n=this,s,o){let r=this.strings,i=!1;if(r===void 0)e=wt(this,e,n,0),i=!vt(e)||e!==this._$AH&&e!==At,i&&(this._$AH=e);else{let a=e,l,c;for(e=r[0],l=0;l<r.length-1;l++)c=wt(this,a[s+l],n,l),c===At&&(c=this._$AH[l]),i||=!vt(c)||c!==this._$AH[l],c===p?e=p:e!==p&&(e+=(c??"")+r[l+1]),this._$AH[l]=c}i&&!o&&this.j(e)}j(e){e===p?this.element.removeAttribute(this.name):this.element.setAttribute(this.name,e??"")}},ve=class extends gt{constructor(){super(...arguments),this.type=3}j(e){this.element[this.name]=e===p?void 0:e}},Ae=class extends gt{constructor(){super(...arguments),this.type=4}j(e){this.element.toggleAttribute(this.name,!!e&&e!==p)}},Me=class extends gt{constructor(e,n,s,o,r){super(e,n,s,o,r),this.type=5}_$AI(e,n=this){if((e=wt(this,e,n,0)??p)===At)return;let s=this._$AH,o=e===p&&s!==p||e.capture!==s.capture||e.once!==s.once||e.passive!==s.passive,r=e!==p&&(s===p||o);o&&this.element.removeEventListener(this.name,this,s),r&&this.element.addEventListener(this.name,this,e),this._$AH=e}handleEvent(e){typeof this._$AH=="function"?this._$AH.call(this.options?.host??this.element,e):this._$AH.handleEvent(e)}},Se=class{constructor(e,n,s){this.element=e,this.type=6,this._$AN=void 0,this._$AM=n,this.options=s}get _$AU(){return this._$AM._$AU}_$AI(e){wt(this,e)}};var Eo=_e.litHtmlPolyfillSupport;Eo?.(Mt,St),(_e.litHtmlVersions??=[]).push("3.3.3");var Oe=(t,e,n)=>{let s=n?.renderBefore??e,o=s._$litPart$;if(o===void 0){let r=n?.renderBefore??null;s._$litPart$=o=new St(e.insertBefore(kt(),r),r,void 0,n??{})}return o._$AI(t),o};var Ne={light:["#ffffff","#cfdff2","#7fabdf","#2c68b4","#0b2a5b"],dark:["#14181f","#1d3252","#2f5c9b","#6ba3e8","#d3e6ff"]},Le={light:["#ffffff","#fbd9c9","#ee9a77","#c1452c","#6b1310"],dark:["#14181f","#4a2a22","#96452f","#e4795a","#ffd5c7"]},Fn={light:{ink:"#1d2430",faint:"#5b6472",line:"#d5dae2",paper:"#ffffff",panel:"#f6f7f9",accent:"#1a5fb4","on-accent":"#ffffff",unseen:"#e4e4e4",edge:"#8b919b",depends:"#b23c06"},dark:{ink:"#e7eaf0",faint:"#a4adbb",line:"#3b4350",paper:"#14181f",panel:"#1d232c",accent:"#8ab8ff","on-accent":"#10151c",unseen:"#3a3f47",edge:"#717a88",depends:"#ff9d61"},both:{followed:"#e8441f",flying:"#b93213"}};var Hn=Fn.both.followed,Rn={light:{weight:Ne.light,against:Le.light},dark:{weight:Ne.dark,against:Le.dark}};var Rt={linear:"0 to 1",root:"square root: small weights are visible",largest:"0 to the largest weight of each row"},Dn={};function Bn(){let{theme:t}=document.documentElement.dataset,e=t==="dark"||t!=="light"&&matchMedia("(prefers-color-scheme: dark)").matches?"dark":"light";return Dn[e]??=Object.fromEntries(Object.entries(Rn[e]).map(([n,s])=>[n,Oo(s)])),Dn[e]}function Oo(t){let e=t.map(n=>[1,3,5].map(s=>parseInt(n.slice(s,s+2),16)));return Uint8Array.from({length:768},(n,s)=>{let o=Math.floor(s/3)/255*(t.length-1),r=Math.min(Math.floor(o),t.length-2),[i,a]=[e[r][s%3],e[r+1][s%3]];return i+(a-i)*(o-r)})}function _t(t){return t>=1?255:t>0?Math.floor(t*256):0}function qn(t,e,n){return e==="root"?Math.sqrt(t):e==="largest"?n>0?t/n:0:t}function Dt(){let{weight:t}=Bn(),e=new Uint32Array(256),n=new Uint8Array(e.buffer);for(let s=0;s<256;s+=1)n.set(t.subarray(3*s,3*s+3),4*s),n[4*s+3]=255;return e}function Bt(t){let{weight:e,against:n}=Bn(),s=3*_t(Math.abs(t));return(t<0?n:e).subarray(s,s+3)}function qt(t){return`rgb(${Bt(t)})`}function Ut(t,e){return Tt(e?t/e:0)}function Tt(t){let e=Bt(t);return`background:rgb(${e});color:${Co(...e)?"#fff":"#000"}`}function Co(t,e,n){let s=o=>o<=10?o/3294.6:((o/255+.055)/1.055)**2.4;return .2126*s(t)+.7152*s(e)+.0722*s(n)<.179}async function J(t,e,n=performance.now()){if(Object.assign(t.state,e),t.playing)return t.waits=n;t.playing=!0;do{t.waits=null,t.began=n;try{let s=t.state.text.trim()?await t.engine.play(t.stored,t.state):null;t.state.busy=s?"":"The sentence is empty; write one.",s&&t.waits===null&&await t.replace(s),window.regard.shown.push(performance.now()-n)}catch(s){t.state.busy=s.message}n=t.waits??n}while(t.waits!==null);return t.playing=!1,t.draw()}var W={erase:"",off:"",factor:"1",warmth:"1",masks:""},I=({state:t,source:e})=>Number(t.place??e.header.chosen),Y=({erase:t})=>t?t.split(".").map(Number):[],No=({off:t})=>t.split(",").filter(Boolean).map(e=>e.split(".")).map(([e,n,s])=>[e,Number(n),Number(s)]);function Vt(t){let{text:e,factor:n,warmth:s,masks:o}=t,r=Y(t),i=No(t),a=Object.fromEntries(o.split(";").filter(l=>l.includes(":")).map(l=>l.split(/:(.*)/s).map(c=>c.trim())));return{source:e,changed:{...r.length?{erase:r}:{},...i.length?{off:i}:{},...Number(n)!==1?{scale:Number(n)}:{},...Number(s)!==1?{temperature:Number(s)}:{},...Object.keys(a).length?{patterns:a}:{}}}}function We({state:t},e){return Vt(t).changed.patterns?.[e]??""}function zt(t,e,n,s){let{state:o,source:{header:{model:r}}}=t,i=o.masks.split(";").filter(c=>c&&!c.startsWith(`${e}:`)),a=n.replaceAll(";","").trim(),l=a===r.patterns[e]?"":a;return J(t,{masks:[...i,...l?[`${e}:${l}`]:[]].join(";")},s)}var je=/\b(sliding_window|causal_window)\((\d+)\)/;function Kt(t,{kind:e,name:n,columns:s}){let o=t.source.header.model.patterns[e],r=We(t,e),i=r||o,[,a,l]=i.match(je)??[],c=Math.max(t.source.answer.pieces[s==="read"?"target":s].length-1,1),h=l===void 0?c:Math.min(a==="sliding_window"?l>>1:l-1,c),d=w=>{if(w===c&&!je.test(o))return i.replace(/^(.*) & sliding_window\(\d+\)$/s,"$1").replace(/^\((.*)\)$/s,"$1");let g=`${a??"sliding_window"}(${a==="causal_window"?w+1:2*w})`;return l===void 0?`${i.includes("|")?`(${i})`:i} & ${g}`:i.replace(je,g)},f=a==="causal_window"?`${h} back`:`\xB1${h}`,m=l===void 0?"all":f;return u`<label class="choice"
><span>Pattern, ${n.toLowerCase()}</span
><input
size="22"
placeholder=${o}
.value=${r}
@change=${w=>zt(t,e,w.target.value)}
/></label>
<label class="choice"
><span>Window ${m}</span
><input
type="range"
min="0"
max=${c}
.value=${String(h)}
aria-label="Window, ${n.toLowerCase()}"
@input=${({target:w,timeStamp:g})=>zt(t,e,d(+w.value),g)}
/></label>`}var Lo=["text",...Object.keys(W)];function lt(t,e,n){let s=t?t.split(n):[];return(s.includes(e)?s.filter(o=>o!==e):[...s,e]).join(n)}function P({state:t,origin:e}){return Object.keys(W).some(n=>String(t[n])!==W[n])||e!==void 0&&t.text!==e.given.source}function V(t,e){let n=Object.fromEntries(Lo.map(s=>[s,t.state[s]]));return t.past.push({...n,place:I(t)}),t.follows="words",J(t,e)}function Ie(t){if(!P(t))return;let e=t.past.pop()??{...W,text:t.origin.given.source},{place:n,...s}=e;return t.follows=n??"words",J(t,s)}var jo=12;function Gt(t){let{state:{layer:e,head:n,off:s},attention:o}=t;if(!t.engine||n==="mean")return p;let r=`${o.kind}.${e}.${n}`;return u`<button @click=${()=>V(t,{off:lt(s,r,",")})}>
${s.split(",").includes(r)?"Switch it on":"Switch it off"}
</button>`}function Vn(t){let{state:e,engine:n,source:s}=t,o=({target:r,timeStamp:i})=>{t.follows=null,J(t,{text:r.value,erase:"",place:void 0},i)};return u`<form
class="live"
@submit=${r=>{r.preventDefault(),t.set({types:!1})}}
>
<label for="sentence">${s.header.model.label}</label>
<input
id="sentence"
name="text"
.value=${e.text}
maxlength="1000"
autocomplete="off"
spellcheck="false"
list="known"
@input=${o}
/>
<datalist id="known">
${Io(e.text,n.words).map(r=>u`<option value=${r}></option>`)}
</datalist>
<button>Done</button>
</form>`}function zn(t){let{state:e,source:{header:{model:n}}}=t,s=P(t);return u`<details class="tweaks">
<summary>Change the model</summary>
<div class="sheet" data-apart>
${Un(t,"factor","Scores \xD7","Factor of all attention scores")}
${Un(t,"warmth","Temperature","What the logits of words are divided by")}
${n.kinds.map(o=>Kt(t,o))}
<p class="hint">
${e.off?`Heads that are off: ${e.off.replaceAll(",",", ")}`:"No head is off."}
</p>
<button
type="button"
?disabled=${!s}
@click=${()=>V(t,{...W,text:t.origin.given.source})}
>
As trained
</button>
</div>
</details>`}var Wo=t=>(2**t).toFixed(3).replace(/\.?0+$/,"");function Un(t,e,n,s){return u`<label class="choice"
><span>${n} ${Number(t.state[e]).toFixed(2)}</span
><input
type="range"
min="-3"
max="3"
step="0.1"
.value=${String(Math.log2(t.state[e]))}
aria-label=${s}
@input=${({target:o,timeStamp:r})=>J(t,{[e]:Wo(o.value)},r)}
/></label>`}function Io(t,e){let[,n,s]=t.match(/^(.*?)([\p{L}\p{N}']+)$/su)??[null,"",""],o=[];for(let r=0;s&&r<e.length&&o.length<jo;r+=1)e[r].length>s.length&&e[r].toLowerCase().startsWith(s.toLowerCase())&&o.push(`${n}${e[r]}`);return o}var Kn=t=>(...e)=>({_$litDirective$:t,values:e}),Qt=class{constructor(e){}get _$AU(){return this._$AM._$AU}_$AT(e,n,s){this._$Ct=e,this._$AM=n,this._$Ci=s}_$AS(e,n){return this.update(e,n)}update(e,n){return this.render(...n)}};var Po="system-ui, sans-serif",S=Kn(class extends Qt{render(){}update({element:t},[e]){queueMicrotask(()=>t.isConnected&&e(t))}});function D(t,e,n){let s=window.devicePixelRatio||1,[o,r]=[Math.round(e*s),Math.round(n*s)];t.width!==o&&(t.width=o),t.height!==r&&(t.height=r),t.style.width=`${e}px`,t.style.height=`${n}px`;let i=t.getContext("2d");return i.setTransform(s,0,0,s,0,0),i.clearRect(0,0,e,n),i.textBaseline="middle",i}function z(t,e,n="normal"){t.font=`${n} ${e}px ${Po}`}function F(t){let e=getComputedStyle(t),n=s=>e.getPropertyValue(s).trim();return{ink:n("--ink"),faint:n("--faint"),line:n("--line"),accent:n("--accent"),unseen:n("--unseen"),lit:Hn,paper:n("--paper")}}function Z(t,e,n){if(t.measureText(e).width<=n)return e;let[s,o]=[0,e.length];for(;s<o;){let r=s+o+1>>1;t.measureText(`${e.slice(0,r)}\u2026`).width<=n?s=r:o=r-1}return`${e.slice(0,s)}\u2026`}function Jt(t,e){for(let n of t.childNodes)n.nodeType===Node.TEXT_NODE&&(n.data=e)}function X(t){let e=t.currentTarget.getBoundingClientRect();return[t.clientX-e.left,t.clientY-e.top]}var Pe={ArrowLeft:[0,-1],ArrowRight:[0,1],ArrowUp:[-1,0],ArrowDown:[1,0],PageUp:[-10,0],PageDown:[10,0]};function B(t,[e,n],[s,o]){let r=null;return t.key in Pe?r=[e+Pe[t.key][0],n+Pe[t.key][1]]:t.key==="Home"?r=[t.ctrlKey?0:e,0]:t.key==="End"&&(r=[t.ctrlKey?s-1:e,o-1]),r===null?null:(t.preventDefault(),[Math.min(Math.max(r[0],0),s-1),Math.min(Math.max(r[1],0),o-1)])}function M(t,e,n,s){return u`<label class="choice"
><span>${t}</span>
<select @change=${o=>s(o.target.value)}>
${e.map(([o,r])=>u`<option
value=${o}
?selected=${String(o)===String(n)}
.selected=${String(o)===String(n)}
>
${r}
</option>`)}
</select></label
>`}function $t(t,{mean:e=!0,kinds:n=!0}={}){let{state:s,source:o}=t,[r,i]=t.attention.shape,a=c=>Array.from({length:c},(h,d)=>[d,String(d)]),l=e&&i>1?[["mean",`mean of ${i}`]]:[];return u`
${n&&o.header.attentions.length>1?M("Attention",o.header.attentions.map((c,h)=>[h,c.name]),s.kind,c=>t.set({kind:c,layer:o.header.attentions[c].shape[0]-1})):p}
${M("Layer",a(r),s.layer,c=>t.set({layer:c}))}
${M("Head",[...l,...a(i)],s.head,c=>t.set({head:c}))}
${Gt(t)}
`}function Yt(t,e=!0){let{state:n}=t,s=Object.entries(Rt).filter(([o])=>e||o!=="largest");return u` ${M("Scale",s,n.scale,o=>t.set({scale:o}))} `}function Fe([t,e],{place:n=o=>o,note:s=""}={}){return u`<p class="legend">
<span>${t}</span
><canvas
width="160"
height="12"
role="img"
aria-label="Colours from ${t} to ${e}"
${S(o=>{let r=o.getContext("2d");for(let i=0;i<160;i+=1)r.fillStyle=qt(n(i/159)),r.fillRect(i,0,1,12)})}
></canvas
><span>${e}</span>${s?u`<span>${s}</span>`:p}
</p>`}var Fo="(0.25 is in the middle)";function Zt({state:{scale:t}},e=!0){return Fe(["0",e&&t==="largest"?"the row's largest weight":"1"],{note:t==="root"?Fo:""})}function Gn(t){return t.sums||"The weights of each row sum to 1."}function ct(t){return t.exact?u`<span class="badge" title="Weights are stored as 32-bit floating-point numbers."
>exact</span
>`:u`<span class="badge" title="Weights are stored as one byte each on a square-root scale."
>rounded to 0.004 or better</span
>`}function Qn(t){let e=new Float64Array(t.length),[n,s]=[-1/0,0];for(let o of t)o>n&&(n=o);for(let o=0;o<e.length;o+=1)s+=e[o]=Math.exp(t[o]-n);for(let o=0;o<e.length;o+=1)e[o]/=s;return e}function T(t,e,n=()=>!0){let s=[];for(let o=0;o<t.length;o+=1){if(s.length===e&&!(t[o]>t[s[e-1]])||!n(o))continue;let r=s.length;for(;r>0&&t[o]>t[s[r-1]];)r-=1;s.splice(r,0,o),s.length>e&&s.pop()}return s}var Ho=48;function Jn(t=document){let e=JSON.parse(t.getElementById("regard-header").textContent);return new H(e,t.getElementById("regard-arrays").textContent)}var H=class{constructor(e,n){this.header=e,this.arrays=n,this.kept=new Map}async bytes([e,n]){let s=atob(this.arrays.slice(e,e+n)),o=new Uint8Array(s.length);for(let i=0;i<s.length;i+=1)o[i]=s.charCodeAt(i);let r=new Blob([o]).stream().pipeThrough(new DecompressionStream("deflate"));return new Uint8Array(await new Response(r).arrayBuffer())}words(e){let{texts:n}=this.header;return{rows:n[e.rows],columns:n[e.columns]}}head(e,n,s){let o=`${e}/${n}/${s}`,r=this.kept.get(o);return r?this.kept.delete(o):r=s==="mean"?this.#e(e,n):this.#t(e,n,s),this.kept.set(o,r),this.kept.size>Ho&&this.kept.delete(this.kept.keys().next().value),r}async#t(e,n,s){let o=this.header.attentions[e],[,,r,i]=o.shape;if(o.exact){let c=await this.bytes(o.exact[n][s]);return new K(new Float32Array(c.buffer),r,i,!0)}let a=await this.bytes(o.bytes[n][s]),l=new Float32Array(a.length);for(let c=0;c<a.length;c+=1)l[c]=Ro[a[c]];return new K(l,r,i,!1)}async#e(e,n){let s=this.header.attentions[e].shape[1],o=[];for(let i=0;i<s;i+=1)o.push(await this.#t(e,n,i));let r=new Float32Array(o[0].values.length);for(let i of o)for(let a=0;a<r.length;a+=1)r[a]+=i.values[a]/s;return new K(r,o[0].rows,o[0].columns,o[0].exact)}async thumbnails(e){let{shape:n,place:s}=this.header.attentions[e].thumbnails;return{rows:n[0],columns:n[1],bytes:await this.bytes(s)}}},Ro=Float32Array.from({length:256},(t,e)=>(e/255)**2),K=class{constructor(e,n,s,o){Object.assign(this,{values:e,rows:n,columns:s,exact:o})}row(e){return this.values.subarray(e*this.columns,(e+1)*this.columns)}at(e,n){return this.values[e*this.columns+n]}entropy(e){let n=0;for(let s of this.row(e))s>0&&(n-=s*Math.log(s));return n}links(e,n,s){let o=this.row(e),r=T(o,s),i=0;for(let c of o)i+=c;let a=[],l=0;for(let c of r){if(!(o[c]>0)||l>=n*i-1e-9)break;l+=o[c],a.push({key:c,weight:o[c]})}return{links:a,hidden:Math.max(0,i-l)}}};function E(t,e){return u`<div class="scroll" tabindex="0" role="region" aria-label=${t}>${e}</div>`}function N(...t){return u`<thead>
<tr>
${t.map(e=>u`<th scope="col">${e}</th>`)}
</tr>
</thead>`}var Do=620;function ts(t,e){let{state:n,source:s}=t,{second:o}=s.header,r=es(t),[i,a]=r.attention?r.attention.shape:[0,0],l=[];for(let h=0;h<i;h+=1){r.outside&&a>1&&l.push([`${h}.mean`,`layer ${h}, mean of ${a}`]);for(let d=0;d<a;d+=1)l.push([`${h}.${d}`,`layer ${h}, head ${d}`])}let c=t.compared?.key===He(t)&&t.compared.source===s?t.compared:null;return!c&&r.attention&&Bo(t,e,r),u`
<h2>${o?"Compare":"Compare two heads"}</h2>
<div class="bar">
${$t(t)} ${ct(e)}
${o?M("With",[["other",o.said],["own","another head of the same"]],r.outside?"other":"own",h=>t.set({against:h,other:void 0})):p}
${l.length?M(o?"Its head":"With",l,`${r.layer}.${r.head}`,h=>t.set({other:h.split(".")})):p}
${c?ct(c.second):p}
</div>
${r.outside?u`<p class="hint">
The page shows: <bdi>${s.header.title}</bdi>; the other is:
<bdi>${o.header.title}</bdi>
${o.header.notes.map(h=>u`<bdi>${h}</bdi> `)}
</p>`:p}
<p class="hint">
Blue: the first head has more weight there; red: the second. Beside each row its
Jensen-Shannon distance, from 0 (equal) to 1 (no key in common).
</p>
${r.attention?c?Uo(t,c):u`<p class="hint">Comparing…</p>`:u`<p class="hint">The other has no ${t.attention.name.toLowerCase()}.</p>`}
${Ko(t,r)?Go(s.header,o):p}
`}function es(t){let{header:e}=t.source,n=!!e.second&&t.state.against!=="own",s=n?e.second.header.attentions:e.attentions,o=n?s.findIndex(({name:d})=>d===t.attention.name):t.state.kind,r=s[o];if(!r)return{outside:n,attention:r,kind:o};let[i,a]=r.shape,[l,c]=t.state.other??(n?[t.state.layer,t.state.head]:[0,0]),h=(d,f)=>Math.min(Math.max(Math.trunc(Number(d))||0,0),f-1);return{outside:n,attention:r,kind:o,layer:h(l,i),head:n&&c==="mean"&&a>1?"mean":h(c,a)}}function He(t){let{outside:e,kind:n,layer:s,head:o}=es(t);return[t.state.kind,t.state.layer,t.state.head,e,n,s,o].join("/")}async function Bo(t,e,{outside:n,attention:s,kind:o,layer:r,head:i}){let a=He(t),{source:l}=t,c=n?l.second??=new H(l.header.second.header,l.arrays):l,h=await c.head(o,r,i);if(a!==He(t)||t.source!==l||t.state.view!=="compare")return;let{matched:d}=l.header.second??{},f=$=>Array.from({length:$},(x,k)=>k),[m,w]=[[t.attention.rows,e.rows],[t.attention.columns,e.columns]].map(([$,x])=>n?d[$]:[f(x),f(x)]),g=[Yn(e,m[0],w[0]),Yn(h,m[1],w[1])],b=g[0].weights.values.map(($,x)=>$-g[1].weights.values[x]),y=b.reduce(($,x)=>Math.max($,Math.abs(x)),0),v=m[0].map(($,x)=>qo(...g.map(({weights:k,rest:C})=>[...k.row(x),C[x]])));t.compared={key:a,source:l,first:g[0].weights,second:g[1].weights,values:b,largest:y,distances:v,outside:n,places:m[0],hidden:g.map(({rest:$})=>De($)),left:e.rows-m[0].length,words:{rows:Re(t.words.rows,c.words(s).rows,m),columns:Re(t.words.columns,c.words(s).columns,w)}},t.draw()}function Re(t,e,[n,s]){return n.map((o,r)=>t[o]===e[s[r]]?t[o]:`${t[o]} / ${e[s[r]]}`)}function Yn(t,e,n){let s=new Float32Array(e.length*n.length),o=e.map((r,i)=>{let a=t.row(r),l=0;for(let c of a)l+=c;return n.forEach((c,h)=>{s[i*n.length+h]=a[c],l-=a[c]}),Math.max(l,0)});return{weights:new K(s,e.length,n.length,t.exact),rest:o}}function De(t){return t.length?t.reduce((e,n)=>e+n,0)/t.length:0}function qo(t,e){let n=0;for(let s=0;s<t.length;s+=1){let o=(t[s]+e[s])/2;t[s]>0&&(n+=t[s]*Math.log2(t[s]/o)/2),e[s]>0&&(n+=e[s]*Math.log2(e[s]/o)/2)}return Math.sqrt(Math.max(n,0))}function Uo(t,e){if(!e.first.rows||!e.first.columns)return u`<p class="hint">
The two have no words in common there, so there is nothing to compare.
</p>`;let n=Xn(t,e),s=e.largest.toFixed(3);return u` <p class="summary" data-distance>
Mean distance of the rows: ${De(e.distances).toFixed(3)}; the largest difference of a
weight is ${e.largest.toFixed(3)}.
</p>
${e.outside?u`<p class="hint" data-hidden>
Hidden: ${Zn(e.hidden[0])} of the first and ${Zn(e.hidden[1])} of the
second are on words without a partner in the other; they count as one more word.
${Vo(e.left)}
</p>`:p}
<canvas
class="difference"
tabindex="0"
role="application"
aria-roledescription="map of differences"
aria-label="Differences; arrow keys move. ${n}"
${S(o=>Qo(t,o,e))}
@click=${o=>Jo(t,o,e)}
@keydown=${o=>{let r=B(o,Xt(t,e),[e.first.rows,e.first.columns]);r&&t.set({pair:r}).then(()=>t.set({said:Xn(t,e)}))}}
></canvas>
<p class="readout">${n}</p>
${Fe([`the second has ${s} more`,`the first has ${s} more`],{place:o=>2*o-1})}
<details class="twin">
<summary>The row as a table</summary>
${zo(t,e)}
</details>`}var Zn=t=>`${(100*t).toFixed(0)} %`;function Vo(t){return t?`${t} ${t===1?"row of the first has":"rows of the first have"} no partner.`:""}function Xt({state:t},{first:e,places:n}){let[s,o]=t.pair??[Math.max(n.indexOf(t.row),0),0];return[Math.min(s,e.rows-1),Math.min(o,e.columns-1)]}function Xn(t,e){let{first:n,second:s,distances:o,words:r}=e,[i,a]=Xt(t,e),[l,c]=[n,s].map(h=>h.at(i,a).toFixed(4));return`${r.rows[i]} looks at ${r.columns[a]} with ${l} in the first head and ${c} in the second; distance of the row ${o[i].toFixed(3)}.`}function zo(t,e){let[n]=Xt(t,e),{first:s,second:o,words:r}=e;return E("The row as a table",u`<table>
${N("Word","First","Second","Difference")}
<tbody>
${r.columns.slice(0,100).map((i,a)=>u`<tr>
<th scope="row"><bdi>${i}</bdi></th>
<td>${s.at(n,a).toFixed(4)}</td>
<td>${o.at(n,a).toFixed(4)}</td>
<td>${(s.at(n,a)-o.at(n,a)).toFixed(4)}</td>
</tr>`)}
</tbody>
</table>`)}function Ko({engine:t,source:{header:e}},{outside:n}){let{texts:s,changes:o,second:r}=e;return n&&!t&&s.target&&o&&r.header.changes}function Go(t,e){let n=(e.matched.target??[[],[]])[0].map((r,i)=>[r,e.matched.target[1][i]]),s=[t.texts.target,e.header.texts.target],o=(r,i)=>Re(...s,[[r],[i]])[0];return u`<details class="twin" open>
<summary>The probability of each written word</summary>
${E("Probabilities of written words",u`<table data-written>
${N("Word","First","Second")}
<tbody>
${n.map(([r,i])=>u`<tr>
<th scope="row">
<bdi>${o(r,i)}</bdi>
</th>
<td>${t.changes.unchanged.probabilities[r].toFixed(3)}</td>
<td>${e.header.changes.unchanged.probabilities[i].toFixed(3)}</td>
</tr>`)}
</tbody>
</table>`)}
</details>`}function Qo(t,e,n){let{first:s,values:o,largest:r,distances:i,words:a}=n,l=F(e),c=Math.max(e.parentElement.clientWidth-2,240),h=90,d=64,f=Math.max(Math.min((c-h-70)/s.columns,Do/s.rows,30),.1),[m,w]=[f*s.columns,f*s.rows],g=D(e,h+m+66,d+w+4);e.place={left:h,top:d,cell:f};let b=new OffscreenCanvas(s.columns,s.rows),y=new ImageData(s.columns,s.rows);o.forEach((k,C)=>{y.data.set([...Bt(r?k/r:0),255],4*C)}),b.getContext("2d").putImageData(y,0,0),g.imageSmoothingEnabled=f<1,g.drawImage(b,h,d,m,w),z(g,f<9?10:Math.min(Math.max(f*.6,8),12));let v=f<9?Math.ceil(20/f):Math.ceil(11/f);g.textAlign="left",g.fillStyle=l.ink;for(let k=0;k<s.columns;k+=v)g.save(),g.translate(h+(k+.5)*f,d-4),g.rotate(-Math.PI/4),g.fillText(Z(g,a.columns[k],80),0,0),g.restore();for(let k=0;k<s.rows;k+=v)g.fillStyle=l.ink,g.textAlign="right",g.fillText(Z(g,a.rows[k],h-8),h-5,d+(k+.5)*f),g.fillStyle=l.accent,g.fillRect(h+m+4,d+k*f,50*De(i.slice(k,k+v)),Math.max(f*v-1,1));let[$,x]=Xt(t,n);g.strokeStyle=l.accent,g.lineWidth=2,g.strokeRect(h+x*f,d+$*f,Math.max(f,4),Math.max(f,4))}function Jo(t,e,{first:n}){let{left:s,top:o,cell:r}=e.currentTarget.place,[i,a]=X(e),[l,c]=[Math.floor((a-o)/r),Math.floor((i-s)/r)];l>=0&&l<n.rows&&c>=0&&c<n.columns&&t.set({pair:[l,c]})}function O(t){return t<5e-4?"under .001":ht(t)}function ht(t){return t<5e-4?"<.001":t>=.9995?"1.000":t.toFixed(3).slice(1)}function ns(t){return ht(Math.floor(t*1e3+1e-9)/1e3)}function ss(t){return ht(Math.floor(t*1e3+1)/1e3)}function R(t){return t>=.01||t<=0?t.toFixed(3):t.toPrecision(2)}function j(t){return t.toFixed(2).replace(/^0/,"")}function Et(t){return t.flatMap((e,n)=>n===0?[e]:[n===t.length-1?" and ":", ",e])}var te=60,ee=3,Yo=1,dt=t=>/^(<[^<>]+>|\[[A-Z]+\])$/.test(t);function Ot({engine:t,source:e}){let{texts:n,changes:s}=e.header;if(n.target)return"written";if(!t)return s?{words:"next",masked:"masked",vectors:"vectors"}[s.follows]:"looks";let{follows:o,logits:r,target:i,likeliest:a}=e.answer;return o!==void 0?"next":r?i.length&&!a.length?"sorted":"masked":"vectors"}function Ct(t,{logits:e,ids:n,probabilities:s}){if(t==="sorted")return s;let o=n.source.length,r=t==="next"?o-1:n.source.indexOf(Yo),i=e.length/o;return r<0?null:Qn(e.subarray(r*i,(r+1)*i))}function os(t,{likeliest:e,target:n,probabilities:s}){return t==="next"?e.at(-1):t==="masked"?e[0]??[]:T(s,ee).map(o=>[n[o],s[o]])}function is(t){if(!t.attention)return null;let e=Ot(t),n={kind:e,...Zo[e](t,e)},s=[n.without?"depends":null,n.looks?"looks":null].filter(Boolean);return{...n,modes:s,by:s.includes(t.state.by)?t.state.by:s[0]}}var Zo={written:Xo,next:Be,sorted:Be,masked:Be,vectors:er,looks:nr};function qe({source:t,engine:e},n){let{model:s}=t.header;return e?`${n} of ${s.parameters.toLocaleString("en")} parameters runs here.`:""}function Xo(t){let{engine:e,source:n,origin:s}=t,{texts:o,changes:r,explained:i,attentions:a}=n.header,l=Math.min(I(t),o.target.length-1),c=a.find(({rows:m,columns:w})=>m==="target"&&w==="source"),h=i[l]?.find(({lens:m})=>m==="attention"),d=m=>{let w=r?.erased[m];return w&&{p:w.probabilities[l],instead:w.likeliest[l]?.[0][0]}},f=h&&{values:h.source.map(([,m])=>m),says:"the heads"};return e&&c?f={values:ls(c,l),says:"the heads"}:!f&&t.attention===c&&(f=Ue(t,l)),{orientation:e?`${qe(t,"A translator")} Press a word of the translation to see what it depends on. Press a word of the sentence to erase it.`:"Press a word of the translation to see what it depends on. Press a word of the sentence to see what is written without it.",given:{label:"Sentence",words:(n.base??n).header.texts.source,...Ve(t)},written:{label:"Translation",words:o.target,before:s?.header.texts.target??o.target,press:m=>t.set({place:m,row:m})},chosen:l,word:o.target[l],own:(e?n.answer:r?.unchanged)?.probabilities[l],without:r&&d,waits:!!e&&!i[l],looks:f}}var rs={next:["A language model","Press a next word to see what it depends on. Press a word of the text to erase it."],sorted:["A classifier","Press a class to see what it depends on. Press a word of the text to erase it."],masked:["A model","Press a word to hide it. The model then guesses what stands there."]},tr={next:"This page holds what a language model expects after this text.",masked:"A word is hidden here, and the page holds what a model guesses."};function Be(t,e){let{engine:n,source:s,state:o}=t,{texts:r,changes:i}=s.header,a=n?os(e,s.answer):os(e,{likeliest:i.unchanged.likeliest}).slice(0,1),l=Math.min(o.pick,Math.max(a.length-1,0)),c=e==="next"?-1:0,h=f=>{if(n){let w=s.probed?.get(f);return w&&{p:w.p[l],instead:w.instead}}let m=i.erased[f];return m&&{p:m.probabilities.at(c),instead:m.likeliest.at(c)?.[0][0]}},d=r.text.length-1;return{orientation:n?`${qe(t,rs[e][0])} ${rs[e][1]}`:`${tr[e]} Press a word to see what changes without it.`,given:{label:"Text",words:(s.base??s).header.texts.text,...Ve(t)},options:a,optionsLabel:{next:"Next word",sorted:"Class",masked:"Guess"}[e],chosen:l,word:a[l]?.[0],own:a[l]?.[1],without:a.length?h:null,relative:e!=="sorted",waits:!!n&&a.length>0&&!s.probed,looks:e==="next"?as(t,d):null}}function er(t){let{engine:e,source:n,state:s}=t,{texts:o,changes:r}=n.header,i=Math.min(s.row,o.text.length-1),a=l=>{let c=r.erased[l];return c&&l!==i?{p:c.similarities[i],instead:null}:void 0};return{orientation:e?`${qe(t,"An encoder")} Press a word to see what its vector depends on. Press it again to erase it.`:"An encoder reads this text and gives each word a vector. Press a word to see what its vector depends on.",given:{label:"Text",words:(n.base??n).header.texts.text,...Ve(t),press:l=>l===i&&e?cs(t,l):t.set({row:l}),can:()=>!0},chosen:i,arcs:!0,word:o.text[i],own:1,without:a,waits:!!e&&!Object.keys(r.erased).length,looks:as(t,i)}}function nr(t){let{state:e,attention:n}=t,{rows:s,columns:o}=t.words,r=n.rows===n.columns,i=a=>t.set({row:a});return{orientation:"This page holds attention weights without their model. Press a word to see where it looks.",given:{label:r?"Words":"Keys",words:o,gone:[],can:()=>r,press:i},written:r?null:{label:"Queries",words:s,before:s,press:i},chosen:e.row,arcs:r,word:s[e.row],without:null,looks:Ue(t,e.row)}}function as(t,e){let[n]=t.source.header.attentions;return t.engine?{values:ls(n,e),says:"the heads"}:Ue(t,e)}function Ue({weights:t,state:e,attention:n},s){if(!t)return null;let o=n.shape[1],r=e.head==="mean"?`the mean of ${o} heads of layer ${e.layer}`:`head ${e.layer}.${e.head}`;return{values:[...t.row(Math.min(s,t.rows-1))],says:r,one:!0}}function ls({shape:[t,e,n,s],weights:o},r){let i=new Array(s).fill(0);for(let a=0;a<t*e;a+=1)for(let l=0,c=(a*n+r)*s;l<s;l+=1)i[l]+=o[c+l]/(t*e);return i}function Ve(t){let{engine:e,source:n,state:s}=t;return e?{gone:Y(s),can:o=>n.answer.erasable.includes(o),press:o=>cs(t,o)}:{gone:[],pointed:s.changed,can:o=>!!n.header.changes?.erased[o],press:o=>t.set({changed:s.changed===o?void 0:o})}}var cs=(t,e)=>V(t,{erase:lt(t.state.erase,String(e),".")});function ne({hot:t},{given:{pointed:e,gone:n},arcs:s,chosen:o}){let r=t??e??null;return n.includes(r)||s&&r===o?null:r}function ze(t,e){if(e<=te)return[0,e];let n=Math.min(Math.max(t-te/2,0),e-te);return[n,n+te]}var _=t=>t==="<begin>"?"beginning":t==="<end>"?"end":t,A=(t,e=!1)=>u`<em class=${e?"c":""}
><bdi>${t==="<end>"?"the end":_(t)}</bdi></em
>`;function hs({by:t,given:e,own:n,without:s,relative:o,kind:r,looks:i,chosen:a,arcs:l}){if(t==="looks"){let c=i.values.map(d=>d<.03?0:d),h=Math.max(...c.filter((d,f)=>!l||f!==a),.01);return c.map((d,f)=>l&&f===a?0:.85*Math.min(d/h,1))}return e.words.map((c,h)=>{let d=e.gone.includes(h)?null:s?.(h);if(!d)return 0;let f=r==="vectors"?1-d.p:o?1-d.p/n:n-d.p;return f<.02?0:Math.min(f,1)})}function se(t,e){let n=Array.from({length:t.length+1},()=>new Uint16Array(e.length+1)),s=[];for(let o=t.length-1;o>=0;o-=1)for(let r=e.length-1;r>=0;r-=1)n[o][r]=t[o]===e[r]?n[o+1][r+1]+1:Math.max(n[o+1][r],n[o][r+1]);for(let[o,r]=[0,0];o<t.length&&r<e.length;)t[o]===e[r]?s.push([o++,r++]):n[o+1][r]>=n[o][r+1]?o+=1:r+=1;return s}function tt(t,e){let n=[],[s,o]=[0,0];for(let[r,i]of[...se(t,e),[t.length,e.length]])(r>s||i>o)&&n.push({before:t.slice(s,r),after:e.slice(o,i),from:s,to:o}),[s,o]=[r+1,i+1];return n}function et(t,e,n){let s=se(e,n).find(([i])=>i===t);if(s)return s[1];let o=tt(e,n).find(({before:i,from:a})=>t>=a&&t<a+i.length);if(!o)return 0;let r=Math.min(t-o.from,Math.max(o.after.length-1,0));return Math.min(o.to+r,n.length-1)}function oe(t){let e=t.findLastIndex(n=>new RegExp("\\p{L}","u").test(n)&&!/^(<.*>|\[[A-Z]+\])$/.test(n));return Math.max(e,0)}var sr=.98,or=2,rr=4,ir=2,ar=2,us=40,lr=160;function ut(t){let{tried:e,origin:n}=t;return e?.origin===n&&(P(t)||e.asked===Nt(t))?e.list:null}function Nt(t){let e=Ot(t);return e==="vectors"?t.state.row:e==="written"?P(t)?t.origin.header.chosen:I(t):P(t)?0:t.state.pick}async function Ke(t,e,n,s){let o=Ct(n,e.answer),r=new Map;if(o){let i=T(o,ee),a=Y(e.given.erase?{erase:e.given.erase.join(".")}:{});for(let l of e.answer.erasable.slice(-us)){if(a.includes(l))continue;let c=await t.engine.ask("run",{...e.given,erase:[...a,l]});if(s())return;let h=Ct(n,c);r.set(l,{p:i.map(d=>h[d]),instead:fs(n,c)})}}e.probed=r}function fs(t,{likeliest:e,target:n,probabilities:s}){return t==="sorted"?n[T(s,1)[0]]:(t==="next"?e.at(-1):e[0])[0][0]}async function ms(t,e,n){let{origin:s}=t;if(e==="vectors")return xr(t,s);let o=e==="written"?null:Ct(e,s.answer);if(e==="masked"&&!o)return yr(t,s,n);let r=e==="written"?await cr(t,s):await ur(t,s,e,o,n);if(!r||n())return[];let i=r.falls.sort(([,h],[,d])=>h-d),a=await fr(t,s,r,i.slice(0,ir),n),l=n()?null:await br(t,s,r,n),c=i.slice(0,a?1:2).map(([h,d])=>$r(t,s,r,h,d));return[a,...c,l].filter(Boolean)}async function cr(t,e){let n=Math.min(Nt(t),e.answer.texts.target.length-1),{given:s,header:o}=e;if(!o.explained[n]){let i=await t.engine.ask("lens",{...s,place:n,others:e.others(n)});if(!i)return null;e.explain(n,i),o.explained[n]??=[]}let r=e.answer.texts.target;return{word:r[n],own:e.answer.probabilities[n],falls:Object.entries(o.changes.erased).map(([i,{probabilities:a}])=>[Number(i),a[n]]),ask:{against:e.answer.ids.target},p:({against:i})=>i.probabilities[n],now:({texts:i})=>i.target[et(n,r,i.target)],cost:i=>hr(r,i),whole:!0}}function hr(t,{texts:{target:e},probabilities:n}){let s=tt(t,e);return e.length!==t.length||s.length>ar||Math.min(...n)<sr||!s.every(({before:r,after:i})=>i.every((a,l)=>re(a)===re(r[l]??"")))?1/0:s.reduce((r,{after:i})=>r+i.length,0)}function dr(t,e){let n=t.findIndex((s,o)=>s!==e[o]);return n>=0&&t[n]<e[n]}async function ur(t,e,n,s,o){if(e.probed||await Ke(t,e,n,o),!e.probed)return null;let r=Nt(t),i=T(s,ee)[r],{likeliest:a,target:l}=e.answer,c=n==="next"?a.at(-1):a[0];return{word:n==="sorted"?l[i]:c[r][0],own:s[i],falls:[...e.probed].map(([h,{p:d}])=>[h,d[r]]),ask:{},p:h=>Ct(n,h)[i],now:h=>fs(n,h),cost:()=>0}}async function fr(t,e,n,s,o){if(!t.engine.words.length)return null;let r=null,{texts:i}=e.answer,a=i.source??i.text;for(let[l]of s){let c=a[l];if(new RegExp("^\\p{L}+$","u").test(c))for(let h of await mr(t,n.whole?a:[c],n.whole?l:0)){let d=gr(e,l,h);if(o())return null;if(!d||!wr(h,c))continue;let f=await t.engine.ask("run",{...e.given,source:d,...n.ask}),m=n.p(f),w=n.cost(f),g=n.now(f),b={p:m,text:d,word:c,other:h,now:g,rank:[g===n.word?1:0,w,m]};if(w<1/0&&(!r||dr(b.rank,r.rank))&&(r=b),n.whole&&r&&r.now!==n.word&&r.rank[1]<=or)return ds(t,e,n,r)}}return r&&ds(t,e,n,r)}async function mr(t,e,n){let s=e.map((r,i)=>[r,Math.abs(i-n)]).filter(([r])=>new RegExp("^\\p{L}+$","u").test(r)&&r.length>=rr).sort(([,r],[,i])=>r-i),o=new Set;for(let[r]of s)for(let i of await t.engine.ask("near",{word:r}))o.add(i);return o}function ds(t,e,n,{text:s,word:o,other:r,now:i,p:a}){return{title:`\u201C${o}\u201D \u2192 \u201C${r}\u201D`,says:Qe(n,i,a),on:l=>l.text===s,press:()=>V(t,{text:t.state.text===s?e.given.source:s})}}function wr(t,e){return t.toLowerCase()!==e.toLowerCase()&&re(t)===re(e)}var re=t=>t.charAt(0)!==t.charAt(0).toLowerCase();function gr({given:t,answer:{texts:e}},n,s){let{source:o}=t,r=(e.source??e.text).slice(0,n+1),i=0;for(let a of r.filter(l=>!dt(l))){let l=o.indexOf(a,i);if(l<0)return null;i=l+a.length}return o.slice(0,i-r.at(-1).length)+s+o.slice(i)}function $r(t,e,n,s,o){let{texts:r}=e.answer;return{title:`Erase \u201C${_((r.source??r.text)[s])}\u201D`,says:Qe(n,n.word,o),...Ge(t,s)}}var Ge=(t,e)=>({on:n=>Y(n).includes(e),press:()=>V(t,{erase:lt(t.state.erase,String(e),".")})});async function br(t,e,n,s){let o=e.header.attentions.flatMap(({kind:c,shape:[h,d]})=>Array.from({length:h*d},(f,m)=>[c,Math.floor(m/d),m%d]));if(o.length>lr)return null;let r=null;for(let c of o){let h=await t.engine.ask("run",{...e.given,off:[c],...n.ask});if(s())return null;let d=n.p(h);(!r||d<r.p)&&(r={p:d,head:c,now:n.now(h)})}let i=r.head.join("."),[a,...l]=r.head;return{title:`Switch off head ${l.join(".")}`,says:`${a==="text"?"":`${pr[a]}: `}${Qe(n,r.now,r.p)}`,on:({off:c})=>c.split(",").includes(i),press:()=>V(t,{off:lt(t.state.off,i,",")})}}var pr={cross:"cross-attention",encoder:"in the encoder",decoder:"in the decoder"};function Qe({word:t,own:e},n,s){if(n!==t)return`\u201C${_(t)}\u201D becomes \u201C${_(n)}\u201D`;let[o,r]=[e,s].map(O),i=s<e?"falls to":"rises to";return`\u201C${_(t)}\u201D ${o===r?"stays at":i} ${r}`}async function yr(t,e,n){let s=[];for(let o of e.answer.erasable.slice(-us)){let r=e.answer.texts.text[o];if(!new RegExp("\\p{L}","u").test(r))continue;let{likeliest:i}=await t.engine.ask("run",{...e.given,erase:[o]});if(n())return[];s.push({at:o,word:r,guess:i[0][0]})}return s.sort((o,r)=>r.guess[1]-o.guess[1]).slice(0,3).map(({at:o,word:r,guess:[i,a]})=>({title:`Hide \u201C${r}\u201D`,says:`the model guesses \u201C${i}\u201D, ${O(a)}`,...Ge(t,o)}))}function xr(t,e){let{header:n}=e,s=Math.min(t.state.row,n.texts.text.length-1),o=n.texts.text[s];return[...Object.entries(n.changes.erased).map(([a,{similarities:l}])=>[Number(a),l[s]]).filter(([a])=>a!==s).sort(([,a],[,l])=>a-l).slice(0,2).map(([a,l])=>({title:`Erase \u201C${_(n.texts.text[a])}\u201D`,says:`the vector of \u201C${_(o)}\u201D changes: cosine ${j(l)}`,...Ge(t,a)})),kr(t,n,s)]}function kr(t,{attentions:[{shape:e,weights:n}],texts:{text:s}},o){let[r,i,a,l]=e,c={weight:-1};for(let f=0;f<r*i;f+=1)for(let m=0;m<l;m+=1){let w=n[(f*a+o)*l+m];w>c.weight&&m!==o&&!dt(s[m])&&(c={weight:w,head:f,at:m})}let[h,d]=[Math.floor(c.head/i),c.head%i];return{title:`Open head ${h}.${d}`,says:`there \u201C${_(s[o])}\u201D looks most at \u201C${s[c.at]}\u201D`,on:({view:f,layer:m,head:w})=>f==="map"&&m===h&&w===d,press:()=>t.set({view:"map",layer:h,head:d})}}var ws=48,nt=class extends H{constructor(e,n,s,o=null){let{header:r,arrays:i}=e,{model:a}=r,l=a.kinds.map(m=>new Je(m,s.attention[m.kind])),{texts:c,text:h,finished:d}=s,f=c.target?`${n.source} \u2192 ${h}`:n.source;super({...r,title:f,texts:c,attentions:l,explained:{},written:a.written,changes:a.follows&&Ar(a,s,o?.answer??s)},i),Object.assign(this,{stored:e,given:n,answer:s,base:o}),this.header.chosen=this.#t(),o&&(Object.assign(this,{second:o}).header.second={said:"the model as trained",header:o.header,matched:vr(c,o.answer.texts)}),d===!1&&(this.header.notes=[...r.notes,"The model does not end this text."])}#t(){let{model:e,texts:n}=this.header;if(e.written!=="target")return oe(n.text);if(e.asked?.source===this.given.source&&n.target[e.asked.place]===e.asked.word)return e.asked.place;let s=n.target.flatMap((o,r)=>e.pronouns.includes(o.toLowerCase())?[r]:[]);return s.length===1?s[0]:this.#e()}#e(){let{probabilities:e}=this.answer,n=Math.max(e.length-1,1);return e.slice(0,n).reduce((s,o,r,i)=>o<i[s]?r:s,0)}others(e){let{model:n,texts:s}=this.header,{asked:o}=n;return o?.place===e&&o.word===s.target?.[e]&&o.source===this.given.source?o.others:null}explain(e,{lenses:n,changes:s}){let{header:o,answer:r}=this;n.length&&(o.explained[e]=n),o.changes&&s.forEach((i,a)=>o.changes.erased[r.erasable[a]]={...gs,...i})}measure(e,{kinds:n,...s}){this.effects={place:e,...s};for(let o of this.header.attentions){let{heads:r,layers:i}=n[o.kind]??{};o.layers=i,r?o.statistics.effect=r:delete o.statistics.effect}}head(e,n,s){let{shape:[,o,r,i],weights:a}=this.header.attentions[e],l=r*i,c=new Float32Array(l);for(let h=s==="mean"?0:s,d=s==="mean"?o:s+1;h<d;h+=1)for(let f=0,m=(n*o+h)*l;f<l;f+=1)c[f]+=a[m+f]/(s==="mean"?o:1);return new K(c,r,i,!0)}async thumbnails(e){let{shape:[n,s,o,r],weights:i}=this.header.attentions[e],[a,l]=[Math.min(o,ws),Math.min(r,ws)],c=new Uint8Array(n*s*a*l);for(let h=0;h<i.length;h+=1){let d=h%r,f=Math.floor(h/r)%o,w=(Math.floor(h/r/o)*a+Math.floor(f*a/o))*l+Math.floor(d*l/r);c[w]=Math.max(c[w],Math.round(255*Math.sqrt(i[h])))}return await new Promise(requestAnimationFrame),{rows:a,columns:l,bytes:c}}};function vr(t,e){return Object.fromEntries(Object.entries(t).map(([n,s])=>{let o=se(s,e[n]);return[n,[0,1].map(r=>o.map(i=>i[r]))]}))}var gs={probabilities:[],likeliest:[],translation:null,similarities:[]};function Ar({follows:t},e,n){let s=r=>({...gs,...r,translation:r.finished===void 0?[]:r.texts.target.slice(0,-1)}),o={similarities:n.texts[n.texts.target?"target":"text"].map(()=>1)};return{follows:t,unchanged:{...s(n),...o},now:e===n?null:{...s(e),...e.against},erased:{}}}var Je=class{constructor(e,{shape:n,weights:s}){Object.assign(this,{links:{},says:"",...e,shape:n,weights:s})}get sums(){let[,,,e]=this.shape,{weights:n}=this;for(let s=0;s<n.length;s+=e)if(Math.abs(n.subarray(s,s+e).reduce((o,r)=>o+r,0)-1)>.01)return"Rows of words that may look at no word sum to 0.";return""}get statistics(){return this.measured??=this.#t()}#t(){let[e,n,s,o]=this.shape,r=[this.rows,this.columns].sort().join(),i=this.rows===this.columns||r==="read,target",a={entropy:[],first:[],received:[],...i?{distance:[]}:{}};for(let l=0;l<e;l+=1){for(let c of Object.values(a))c.push([]);for(let c=0;c<n;c+=1){let h=new Float64Array(o),[d,f,m]=[0,0,0];for(let w=0;w<s;w+=1)for(let g=0;g<o;g+=1){let b=this.weights[((l*n+c)*s+w)*o+g];b>0&&(d-=b*Math.log(b)/s),g===0&&(f+=b/s),m+=b*Math.abs(w-g)/s,h[g]+=b/s}for(let[w,g]of Object.entries({entropy:d,first:f,distance:m,received:Math.max(...h)}))a[w]?.[l].push(g)}}return a}};var Mr={lenses:[],changes:[]};async function bt(t){let{source:e}=t,{header:n}=e,s=I(t);if(!(e instanceof nt)||t.asking)return;if(n.explained[s])return $s(t);let o=t.began??performance.now();t.asking=e;let r=Mr;try{r=await t.engine.ask("lens",{...e.given,place:s,others:e.others(s)})}catch(i){t.state.busy=i.message}if(t.asking=null,!t.playing)return t.source!==e||!r?bt(t):(e.explain(s,r),n.explained[s]??=[],t.began=null,await t.draw(),window.regard.coloured.push(performance.now()-o),$s(t))}async function $s(t){let{source:e,origin:n}=t,s=Ot(t),o=bs(t),r=Nt(t),i=ut(t)!==null,a=s!=="written"&&s!=="vectors"&&!e.probed;if(t.asking||t.playing||i&&!a)return;t.asking=e;let l=()=>t.source!==e||t.playing||bs(t)!==o;try{if(a&&(await Ke(t,e,s,l),l()||await t.draw()),!l()&&!i){let h=await ms(t,s,l);l()||(t.tried={origin:n,asked:r,list:h})}}catch(h){t.state.busy=h.message,i||(t.tried={origin:n,asked:r,list:[]})}let c=l();t.asking=null,!t.playing&&(await t.draw(),c&&await bt(t))}var bs=({state:t,source:e})=>[e.given.source,t.place??e.header.chosen,t.pick,t.row].join("/");async function ps(t){let{source:e}=t,n=I(t);if(!(e instanceof nt)||e.effects?.place===n||(e.effects&&e.measure(null,{kinds:{}}),t.asking||t.playing))return;t.asking=e;let s={kinds:{}};try{s=await t.engine.ask("effects",{...e.given,place:n,others:e.others(n)})}catch(o){t.state.busy=o.message}t.asking=null,s&&e.measure(n,s),t.source===e&&!t.playing&&await t.draw()}var Sr=2,_r={written:"write",next:"continue with",sorted:"answer",masked:"guess"};function ys(t,e,n){let{by:s,word:o}=e;if(o===void 0)return"Press a word to hide it. The model then guesses what stands there.";let r=ne(t,e),i=r===null?Tr(n):[r];return s==="looks"?Nr(e,i,r!==null):s?e.waits&&!i.length?u`What does ${A(o,!0)} depend on? Each word is erased in turn…`:e.kind==="vectors"?Cr(e,i):Er(e,i,n):u`This page holds no attention weights of ${A(o,!0)}.`}function Tr(t){return t.map((e,n)=>[e,n]).filter(([e])=>e>0).sort(([e],[n])=>n-e).slice(0,Sr).map(([,e])=>e)}function Er({kind:t,given:e,word:n,own:s,without:o},[r,i],a){let l=_r[t],c=w=>A(e.words[w]),h=A(n,!0);if(r===void 0)return Or({given:e,own:s,without:o,chosen:h,kind:t});let d=o(r);if(!d)return u`This page does not hold what the model does without ${c(r)}.`;if(!(a[r]>0))return u`Without ${c(r)}, the model would still ${l} ${h}, with probability
${O(d.p)}.`;let f=i===void 0?p:u` <small
>Without ${c(i)} it falls to ${O(o(i).p)}.</small
>`,m=u`falls from ${O(s)} to ${O(d.p)}.${f}`;return d.instead===n||d.instead===void 0?u`Without ${c(r)}, the model would be less sure of ${h}: its probability
${m}`:u`Without ${c(r)}, the model would ${l} ${A(d.instead)}: the probability of
${h} ${m}`}function Or({given:t,own:e,without:n,chosen:s,kind:o}){let r=t.words.map((h,d)=>n(d)?.p).filter(h=>h!==void 0);if(!r.length)return u`There is no word that could be erased.`;let i=Math.min(e,...r),a=i<.001?`below ${ss(e)}`:`above ${ns(i)}`,l=i>=.9995?"at 1.000":a;return u`No single word of ${o==="written"?"the sentence":"the text"} decides ${s}: erase any one of them and its
probability stays ${l}.`}function Cr({given:t,word:e,without:n,waits:s},[o,r]){let i=A(e,!0),a=c=>j(n(c).p);if(o===void 0||!n(o))return s?u`What does ${i} depend on?`:u`No other word alone changes the vector of ${i} much.`;let l=r===void 0?p:u` <small>Without ${A(t.words[r])} it is ${a(r)}.</small>`;return u`Without ${A(t.words[o])}, the vector of ${i} changes: its cosine with
the vector before is ${a(o)}.${l}`}function Nr({kind:t,given:e,word:n,looks:s},[o,r],i){let a=A(n,!0),l={written:u`While it writes ${a}, ${s.says}`,next:u`Before the next word, ${s.says}`}[t]??u`From ${a}, ${s.says}`,c=s.one?"looks":"look",h=m=>u`${A(e.words[m])} (${j(s.values[m])})`;if(o===void 0)return u`${l} ${c} at no word in particular.`;let d=r===void 0?p:u`, then at ${h(r)}`,f=t==="looks"?"It says where a word looks, not what it uses.":"To look at a word is not yet to use it.";return u`${l} ${c} ${i?"":"most "}at ${h(o)}${d}.
<small>${f}</small>`}var Lr=.02,jr=2e6;function ie(t,e){return e.kind==="written"?Wr(t,e):Ir(t,e)}function Wr(t,{given:e,without:n,word:s,own:o}){return n?e.words.map((r,i)=>({one:r,at:i,p:n(i)?.p})).filter(({p:r})=>r<o-Lr).sort((r,i)=>r.p-i.p).slice(0,3).map(({one:r,at:i,p:a})=>({title:`Without \u201C${_(r)}\u201D`,says:`\u201C${_(s)}\u201D falls to ${O(a)}`,on:({changed:l})=>l===i,press:()=>e.press(i)})):[]}function Ir(t,{chosen:e,word:n}){let{attention:s,state:o,words:r}=t,[i,a,l,c]=s.shape;if(i*a*l*c>jr)return[];let h=[o.kind,e].join("/");if(t.strongest?.key!==h||t.strongest.source!==t.source)return Pr(t,h,e),null;let{layer:d,head:f,at:m,weight:w}=t.strongest,g=r.columns[m],b=a>1&&{title:`Mean of ${a} heads`,says:`of layer ${o.layer}: a mean hides what single heads do`,on:$=>$.head==="mean",press:()=>t.set({head:"mean"})},y=s.rows===s.columns&&{title:`Ask \u201C${_(g)}\u201D`,says:"where does it look itself?",on:({row:$})=>$===m,press:()=>t.set({row:m})};return[{title:`Show head ${d}.${f}`,says:`there \u201C${_(n)}\u201D looks most at \u201C${_(g)}\u201D (${j(w)})`,on:$=>Number($.layer)===d&&$.head===f,press:()=>t.set({layer:d,head:f})},y,b].filter(Boolean)}async function Pr(t,e,n){let{source:s,state:o,attention:r,words:i}=t;if(t.searched===e&&t.searching===s)return;Object.assign(t,{searched:e,searching:s});let[a,l]=r.shape,c=r.rows===r.columns,h={weight:-1};for(let d=0;d<a;d+=1)for(let f=0;f<l;f+=1)(await s.head(o.kind,d,f)).row(n).forEach((w,g)=>{!(c&&g===n)&&!dt(i.columns[g])&&w>h.weight&&(h={weight:w,layer:d,head:f,at:g})});t.source===s&&(t.strongest={...h,key:e,source:s},t.drawFirst())}function ks(t,e){if(!t.engine)return Dr(t,e);if(!P(t))return Hr(t,e);let n=Br(t),s=Ur(t,e);return u`${n.length>1?u`Together, ${Et(n.map(vs))}`:n.map(Fr)}:
${s.length?Et(s):u`nothing changes`}.`}var vs=([t,e])=>u`${t} ${e}`,Fr=([t,e])=>vs([t.charAt(0).toUpperCase()+t.slice(1),e]);function Hr(t,{kind:e,word:n}){let s=ut(t);return s?s.length?e==="masked"&&n===void 0?u`Hide one word. These are the ones that the model guesses most surely:`:u`Experiments on ${A(n,!0)}, found by trying words and heads of this model:`:u`No experiment was found for this text.`:u`Looking for three experiments on this model…`}function Rr({word:t},e){return e?e.length?u`All heads were searched for the one in which ${A(t,!0)} looks most at
another word:`:"":u`All heads are searched…`}function Dr(t,e){let{pointed:n,words:s}=e.given,o=t.source.header.changes?.erased[n],r=ie(t,e);return e.kind!=="written"?Rr(e,r):o?.translation?.length?u`Without ${A(s[n])} the model writes:
<em><bdi>${o.translation.join(" ")}</bdi></em>`:r.length?"What is written without the words that matter most:":"No word of the sentence matters much for this one."}function Br({state:t,origin:e}){let{texts:n}=e.header,s=n.source??n.text,o=[];if(t.text!==e.given.source)for(let{before:l,after:c}of qr(e.given.source,t.text))o.push(["with",u`${A(c)} instead of ${A(l)}`]);let r=Y(t).map(l=>A(s[l]??String(l)));r.length&&o.push(["without",Et(r)]);let i=t.off?t.off.split(","):[],a=i.map(l=>l.split(".").slice(1).join("."));return i.length&&o.push(["with",u`${i.length>1?"heads":"head"} ${Et(a)} switched off`]),Number(t.factor)!==1&&o.push(["with",`attention scores \xD7 ${t.factor}`]),Number(t.warmth)!==1&&o.push(["at",`temperature ${t.warmth}`]),t.masks&&o.push(["with","another pattern"]),o}function qr(t,e){return tt(t.split(" "),e.split(" ")).map(n=>({before:n.before.join(" ").replace(/[.,!?]$/,""),after:n.after.join(" ").replace(/[.,!?]$/,"")}))}function Ur(t,{kind:e,chosen:n,word:s,own:o,options:r}){let{origin:i,source:a}=t;if(e==="written"){let[d,f]=[i.header.texts.target,a.header.texts.target],m=tt(d,f).map(Kr);if(m.length)return m;let w=i.answer.probabilities[et(n,f,d)];return[u`the same is written, and ${xs(s,o,w)}`]}if(e==="vectors")return Vr(a.header.changes,n,s);if(!r.length)return[];let[[l,c]]=r,h=zr(e,i.answer);return h?l===h[0]?[xs(l,c,h[1])]:[u`${A(h[0])} becomes ${A(l,!0)}, with probability ${O(c)}`]:[u`the model guesses ${A(l,!0)} with probability ${O(c)}`]}function Vr({now:t},e,n){if(!t)return[u`its vectors are not compared with those of the text before`];let s=j(t.similarities[e]);return[u`the cosine of the vector of ${A(n,!0)} with the one before is ${s}`]}function xs(t,e,n){let[s,o]=[e,n].map(O);return s===o?u`${A(t,!0)} keeps probability ${s}`:u`${A(t,!0)} has probability ${s} instead of ${o}`}function zr(t,{likeliest:e,target:n,probabilities:s}){if(t==="next")return e.at(-1)[0];if(t==="masked")return e[0]?.[0];let o=s.indexOf(Math.max(...s));return[n[o],s[o]]}function Kr({before:t,after:e}){return e.length?t.length?u`${A(t.join(" "))} becomes ${A(e.join(" "))}`:u`${A(e.join(" "))} is added`:u`${A(t.join(" "))} is gone`}var Ye="[role=toolbar], [role=radiogroup], [role=tablist]",ae=t=>[...t.querySelectorAll("button, summary")].filter(e=>!e.closest("[data-apart]"));function As(t){for(let e of t.querySelectorAll(Ye)){let n=ae(e),s=n.find(o=>o===e.last)??n.find(o=>o.matches("[aria-checked=true], [aria-selected=true], .chosen"))??n[0];for(let o of n)o.tabIndex=o===s?0:-1}}var Gr=(t,e,n)=>({ArrowRight:(e+1)%n,ArrowLeft:(e-1+n)%n,Home:0,End:n-1})[t];function le(t){let e=t.target.closest(Ye);if(!e||!t.target.matches("button, summary"))return;let n=ae(e),s={ArrowDown:"written",ArrowUp:"given"}[t.key],o=s&&e.dataset.line&&e.parentElement.querySelector(`[data-line=${s}]`),r=o&&o!==e?ae(o).find(a=>a.tabIndex===0):n[Gr(t.key,n.indexOf(t.target),n.length)];if(!r)return;t.preventDefault();let i=r.closest(Ye);i.last=r;for(let a of ae(i))a.tabIndex=a===r?0:-1;r.focus(),i.matches("[role=radiogroup], [role=tablist]")&&r.click()}var Ms="Reading\u2026";function Ss(t){let{live:e}=t.source.header;return u`<form class="live" @submit=${n=>Qr(t,n)}>
<label for="sentence">${e.label}</label>
<input id="sentence" name="text" .value=${e.text} maxlength="4000" autocomplete="off" />
<button ?disabled=${t.state.busy===Ms}>Read</button>
</form>`}async function Ze(t,e){let n=await fetch(t,{method:"POST",headers:{"Content-Type":"application/json"},body:JSON.stringify({text:e})}).catch(()=>{throw new Error("The server has ended; start it again.")}),s=await n.json();if(!n.ok)throw new Error(s.error);return s}async function Qr(t,e){e.preventDefault();let n=new FormData(e.target).get("text");if(!n.trim()){t.set({busy:"The sentence is empty; write one."});return}t.set({busy:Ms});try{let s=await Ze("read",n);t.state.busy="",await t.replace(new H(s.header,s.arrays))}catch(s){t.set({busy:s.message})}}var Jr="http://www.w3.org/2000/svg";function _s(t,e,n){let s=`${e}/${t.clientWidth}`,o=[...t.querySelectorAll(".line")],r=()=>Math.max(...o.map(f=>f.scrollWidth)),i=()=>o.some(f=>f.scrollWidth>f.clientWidth+1);if(t.fitted===s&&!i())return;t.fitted=s,t.classList.remove("wrapped");for(let f of o)f.style.minHeight="";t.style.setProperty("--s","40px");let a=parseFloat(getComputedStyle(t).fontSize),l=o.length>1?.88:.97,c=Math.min(1.85*a,40*t.clientWidth*l/r());t.style.setProperty("--s",`${c}px`);let h=c<18||i();t.classList.toggle("wrapped",h),t.classList.toggle("arcs",n),h&&t.style.setProperty("--s",`${1.3*a}px`),Yr(t,h);let d=t.querySelector(".line.written");h&&d&&(d.style.minHeight=`${d.offsetHeight}px`)}function Yr(t,e){let n=t.querySelector(".options.follows");if(!n)return;n.style.marginLeft="";let s=[...t.querySelectorAll(".given .w")].at(-1),o=s.offsetLeft+s.offsetWidth,r=t.clientWidth-n.scrollWidth;e||(n.style.marginLeft=`${Math.max(Math.min(o,r),0)}px`)}function Ts(t,{strengths:e,ghosts:n,pointed:s,arcs:o}){let r=t.querySelector("svg"),i=t.getBoundingClientRect(),a=d=>{let{left:f,width:m,top:w,bottom:g}=d.querySelector(".t").getBoundingClientRect();return{x:f+m/2-i.left,top:w-i.top,bottom:g-i.top}},l=t.querySelector(o?".given .chosen":".written .chosen, .options .chosen"),c=[...t.querySelectorAll(".given .w")],h=[];if(l)for(let d of c){let f=Number(d.dataset.at),m=e[f]??0,w=n.includes(f);if(d===l||!m&&!w)continue;let g=document.createElementNS(Jr,"path");g.setAttribute("d",(o?Xr:Zr)(a(l),a(d))),w&&!m?g.setAttribute("class","ghost"):(g.style.strokeWidth=1+7*m,g.style.opacity=(.3+.6*m)*(s===null||s===f?1:.35)),h.push(g)}r.replaceChildren(...h)}function Zr(t,e){let n=Math.max((t.top-e.bottom)*.55,24);return`M${t.x} ${t.top}C${t.x} ${t.top-n} ${e.x} ${e.bottom+n} ${e.x} ${e.bottom}`}function Xr(t,e){if(t.top>e.bottom||e.top>t.bottom){let[o,r]=t.top<e.top?[t,e]:[e,t],i=(o.bottom+r.top)/2;return`M${o.x} ${o.bottom}C${o.x} ${i} ${r.x} ${i} ${r.x} ${r.top}`}let s=Math.min(Math.max(26,Math.abs(t.x-e.x)*.24),110);return`M${t.x} ${t.top}C${t.x} ${t.top-s} ${e.x} ${e.top-s} ${e.x} ${e.top}`}var ti={depends:"Depends on",looks:"Looks at"};function Cs(t){let e=is(t);if(!e)return u`<h1><bdi>${t.source.header.title}</bdi></h1>`;(e.waits||t.engine&&!ut(t))&&queueMicrotask(()=>bt(t));let n=hs(e),{busy:s,types:o}=t.state,r=t.source.answer?.unknown??[];return u`<div class="screen" data-by=${e.by} @keydown=${i=>bi(t,i)}>
<div class="top">
${t.engine&&o?Vn(t):si(t,e)}
<span role="alert">${s}</span>
${r.length?oi(r):p}
</div>
<h1 class="answer" ${S(i=>ni(t,i))}>
${ys(t,e,n)}
</h1>
${ri(t,e,n)} ${wi(t,e)?ei(t,e):p}
</div>`}function ei(t,e){let n=!!t.engine&&P(t);return u`<div class="told">
<p><span aria-live="polite" class="outcome">${ks(t,e)}</span></p>
<button class="undo ${n?"on":""}" ?disabled=${!n} @click=${()=>Ie(t)}>
Undo
</button>
</div>
${$i(t,e)}`}function ni(t,e){e.style.height=t.hot===null?"":`${t.answerHeight}px`,t.hot===null&&(t.answerHeight=e.offsetHeight)}function si(t,{orientation:e,kind:n}){let{live:s,title:o}=t.source.header,r=!t.engine&&n!=="written";return u`${r?u`<p class="title"><bdi>${o}</bdi></p>`:p}
<p class="orientation">${e}</p>
${s&&!t.engine?Ss(t):p}`}function oi(t){return u`<p class="unknown">
Not in the training of this model: <bdi>${t.join(", ")}</bdi>; what it makes of such words
is a guess.
</p>`}function ri(t,e,n){let{given:s,written:o,options:r,arcs:i}=e,a=[t.origin?.header.title??t.source.header.title,e.kind].join("/"),l=ui(t,e,n);return u`<section
class="stage"
aria-label="The words, and links between them"
${S(c=>{_s(c,a,!!i);let h={strengths:n,ghosts:l,pointed:ne(t,e),arcs:i};Ts(c,h)})}
>
<svg aria-hidden="true"></svg>
<div class="cap">
<p class="note"><strong>${s.label}</strong> ${hi(e,n,l)}</p>
${e.modes.length>1?ii(t,e):p}
</div>
${i?u`<div class="gap"></div>`:p} ${ai(t,e,n)}
${i||r?.length===0?p:u`<div class="gap"></div>`}
${o?li(t,e):p} ${r?ci(t,e):p}
<div class="cap below">
<p class="note">${di(e)}</p>
${t.engine?fi(t):p}
</div>
</section>`}function ii(t,{by:e}){return u`<div class="switch" role="radiogroup" aria-label="Links show what the word">
${Object.entries(ti).map(([n,s])=>u`<button
role="radio"
data-mode=${n}
aria-checked=${String(n===e)}
@click=${()=>t.set({by:n})}
>
${s}
</button>`)}
</div>`}function ai(t,e,n){let{given:s,chosen:o,arcs:r,by:i,looks:a}=e,[l,c]=ze(r?o:s.words.length,s.words.length),h=e.kind==="written"?"source":t.attention.columns,d=w=>{if(!(n[w]>0))return"";if(i==="looks")return j(a.values[w]);let{p:g}=e.without(w);return e.kind==="vectors"?j(g):ht(g)},f=w=>s.gone.includes(w)||s.pointed===w||!!r&&w===o,m=(w,g)=>{let b=i==="looks"?"looked at with":"without it",y=s.gone.includes(g)?", erased":"";return`${_(w)}${y}${d(g)?`, ${b} ${d(g)}`:""}`};return u`<div
class="line given"
data-line="given"
role="toolbar"
aria-label="Words that are read${t.engine&&!r?"; press one to erase it":""}"
@pointerover=${w=>w.pointerType==="mouse"&&Es(t,w,h,s)}
@pointerleave=${()=>Os(t)}
@focusin=${w=>w.target.matches(":focus-visible")&&Es(t,w,h,s)}
@focusout=${()=>Os(t)}
>
${js(s.words,[l,c],(w,g)=>u`<button
class="w ${Ls(w)} ${tn({gone:s.gone.includes(g),chosen:r&&g===o,hot:s.pointed===g,still:!s.can(g)})}"
data-at=${g}
aria-label=${m(w,g)}
aria-pressed=${s.can(g)?String(f(g)):p}
aria-disabled=${s.can(g)?p:"true"}
.style="--k:${(n[g]??0).toFixed(3)}"
@click=${()=>s.can(g)&&s.press(g)}
>
<span class="n">${d(g)}</span><span class="t"><bdi>${_(w)}</bdi></span>
</button>`)}
</div>`}function li(t,{kind:e,written:n,chosen:s}){let o=[];for(let{before:i,after:a,to:l}of tt(n.before,n.words)){let c=i.length===a.length,h=Math.max(a.length,1);for(let d=0;d<h;d+=1)o[l+d]=c?i[d]:d===0?i.join(" "):""}let r=e==="written"?"target":t.attention.rows;return u`<div
class="line written"
data-line="written"
role="toolbar"
aria-label="Words that are written; press one to explain it"
@pointerover=${i=>i.pointerType==="mouse"&&ce(t,i,r)}
@pointerleave=${()=>ce(t,null)}
>
${js(n.words,ze(s,n.words.length),(i,a)=>u`<button
class="w ${Ls(i)} ${tn({chosen:a===s})}"
data-at=${a}
aria-pressed=${String(a===s)}
@click=${()=>n.press(a)}
>
<span class="t"><bdi>${_(i)}</bdi></span>
${o[a]?u`<span class="was"><bdi>${o[a]}</bdi></span>`:p}
</button>`)}
</div>`}function ci(t,{kind:e,options:n,chosen:s,optionsLabel:o}){let r=Math.max(...n.map(([,i])=>i));return u`<div
class="options ${e==="next"?"follows":""}"
data-line="written"
role="toolbar"
aria-label=${o}
>
${n.map(([i,a],l)=>u`<button
class="w ${tn({chosen:l===s})}"
aria-pressed=${String(l===s)}
@click=${()=>t.set({pick:l})}
>
<span class="t"><bdi>${_(i)}</bdi></span>
</button>
<i
class=${l===s?"chosen":""}
.style="width:${(100*a/r).toFixed(1)}%"
></i>
<strong>${ht(a)}</strong>`)}
</div>`}var tn=t=>Object.keys(t).filter(e=>t[e]).join(" "),Ns=t=>/^[\p{P}]$/u.test(t);function Ls(t){return dt(t)?"e":Ns(t)?"p":""}function js(t,[e,n],s){let o=[];for(let r=e;r<n;r+=1)Ns(t[r])&&o.length?o.at(-1).push(r):o.push([r]);return o.map(r=>u`<span class="g">${r.map(i=>s(t[i],i))}</span>`)}function Es(t,e,n,s){let o=e.target.closest(".w");if(!o)return;ce(t,e,n);let r=s.can(Number(o.dataset.at))?Number(o.dataset.at):null;t.hot!==r&&(t.hot=r,t.drawFirst())}function Os(t){ce(t,null),t.hot!==null&&(t.hot=null,t.drawFirst())}function ce(t,e,n){let s=e?.target.closest(".w");t.lit=s?{text:n,at:Number(s.dataset.at)}:null,t.light?.()}function hi({by:t,looks:e,kind:n,word:s,without:o},r,i){if(t===void 0)return"";if(t==="looks")return u`numbers: share of attention <span class="long">of ${e.says}</span>`;let a=u`dotted: what <em><bdi>${i.word}</bdi></em> depended on before`;return!o||!r.some(l=>l>0)?i.length?a:"":u`${i.length?Xe("numbers:",""):"numbers:"}
${Xe(n==="vectors"?"cosine of the vector of":"probability of","")}
${A(s,!0)} without
${i.length?u`${Xe("that word;","it;")} ${a}`:"that word"}`}var Xe=(t,e)=>u`<span class="long">${t}</span><span class="brief">${e}</span>`;function di({kind:t,written:e,optionsLabel:n,word:s,own:o}){let r=e?.label??n;return t==="looks"||t==="vectors"||s===void 0?r?u`<strong>${r}</strong>`:"":o===void 0?u`<strong>${r}</strong>`:u`<strong>${r}</strong> ${A(s,!0)} has
<span class="o">probability ${ht(o)}</span>`}function ui(t,{kind:e,by:n,chosen:s,written:o},r){let{origin:i,source:a}=t,l=Object.assign([],{word:""});if(e!=="written"||n!=="depends"||!i||i===a)return l;let c=et(s,o.words,o.before),h=o.before[c];if(h===o.words[s]||i.header.texts.source.length!==a.header.texts.source.length)return l;let d=i.answer.probabilities[c],f=Object.entries(i.header.changes.erased).filter(([m,{probabilities:w}])=>d-w[c]>.05&&r[m]<.05).map(([m])=>Number(m));return Object.assign(f,{word:h})}function fi(t){return u`<div class="tools" role="toolbar" aria-label="Text and model">
<button class="plain" @click=${()=>mi(t)}>
Another ${t.source.header.texts.source?"sentence":"text"}
</button>
${zn(t)}
</div>`}async function mi(t){await t.set({types:!t.state.types});let e=t.element.querySelector("#sentence");e?.focus(),e?.select()}var wi=(t,{kind:e})=>!!t.engine||e!=="next"&&e!=="masked",gi=u`<button disabled>
<strong>…</strong><span>trying words and heads</span>
</button>`;function $i(t,e){let s=(t.engine?ut(t):ie(t,e))??[null,null,null];return u`<div class="try" role="toolbar" aria-label="Experiments">
${s.map(o=>o?u`<button aria-pressed=${String(!!o.on(t.state))} @click=${o.press}>
<strong>${o.title}</strong><span>${o.says}</span>
</button>`:gi)}
</div>`}function bi(t,e){let n=e.target.matches("input"),s=e.key==="z"&&(e.ctrlKey||e.metaKey)&&!n;e.key==="Escape"&&t.state.types?t.set({types:!1}):s||e.key==="Escape"&&!n?Ie(t):le(e)}var nn={layer:{title:"layer and head",says:""},entropy:{title:"entropy",says:"low: each word looks at few others; high: at all alike",unit:"nats"},distance:{title:"distance",says:"the mean distance between a word and what it looks at",unit:"words"},first:{title:"weight of the first word",says:"a head that looks there does little (an attention sink)"},received:{title:"most received",says:"the largest share of all weight that one word receives"},effect:{title:"effect on the word",says:"how far the log odds of the word fall when the head gives nothing; one head alone: of two that do the same, neither may have an effect"},apart:{title:"distance from the other",says:"the mean Jensen-Shannon distance from the same head of what is compared: 0 equal, 1 no key in common"}},pi=new Set(["apart","effect"]);function he(t,e){if(nn[e]||!Object.hasOwn(t.links,e))return nn[e]??{title:e,says:""};let[n,s]=t.links[e];return{title:`relation: ${e}`,says:`the mean weight on the right word, over ${n} link${n===1?"":"s"} of this text that rules for English find; ${s.toFixed(2)} if all words had the same weight; one text says little about a head in general`}}var st=14,q=15,sn=3,yi=56,en=100;function Ws(t){let{state:e,attention:n}={state:t.state,attention:t.attention};ps(t);let s=["layer",...Object.keys(n.statistics)],o=s.includes(e.sort)?e.sort:"layer",r=he(n,o),i=Is(n,o),a=Ps(o)?"highest":"lowest",l=r.says?`Sorted by ${r.title} (${r.says}), the ${a} first. `:"",c=t.source.header.attentions,[h,d]=n.shape,f=Math.max(i.findIndex(([m,w])=>m===e.layer&&w===e.head),0);return u`
<h2>What does each head do?</h2>
<div class="bar">
${c.length>1?M("Attention",c.map((m,w)=>[w,m.name]),e.kind,m=>t.set({kind:m})):""}
${M("Sort by",s.map(m=>[m,he(n,m).title]),o,m=>t.set({sort:m}))}
${Yt(t,!1)} ${Gt(t)}
</div>
<p class="hint">
${n.name}. Rows: ${n.row_title}. Columns: ${n.column_title}.
${n.sums??""} ${l}Choose a head to see it large; each small map shows the largest
weight of each part. Above each map: layer.head, both counted from 0, so
${h-1}.${d-1} is head ${d-1} of layer
${h-1}${o==="layer"?"":`; then the ${r.title}`}.
</p>
${xi(t)} ${Zt(t,!1)}
<canvas
class="heads"
tabindex="0"
role="application"
aria-roledescription="map of heads"
aria-label="Heads; arrow keys move, Enter opens a head. ${Fs(n,i,f)}"
data-chosen=${f}
${S(m=>Hs(t,m,i,f,o))}
@click=${m=>Rs(t,i,Mi(m))}
@keydown=${m=>Si(t,m,i,f)}
></canvas>
<details class="twin">
<summary>The same as a table</summary>
${_i(t,n,i,s)}
</details>
`}function Is(t,e){let[n,s]=t.shape,o=[];for(let l=0;l<n;l+=1)for(let c=0;c<s;c+=1)o.push([l,c]);let r=t.statistics[e],i=Ps(e)?-1:1,a=([l,c])=>r[l][c]??i*(1/0);return r?o.sort((l,c)=>a(l)===a(c)?0:i*(a(l)-a(c))):o}function Ps(t){return pi.has(t)||!nn[t]}var pt=(t,e)=>t===null?"\u2013":`${t<0?"\u2212":""}${Math.abs(t).toFixed(e)}`;function xi(t){let{source:e,attention:n}=t,{effects:s}=e,o=I(t);if(!t.engine||s?.place===o&&!n.statistics.effect)return"";if(s?.place!==o)return u`<p class="hint" role="status" data-effects>
Switching off one head after the other…
</p>`;let r=Is(n,"effect")[0],i=s.others.map((h,d)=>u`${d?" or ":""}<bdi>${h}</bdi>`),a=i.length?u` rather than ${i}`:"",l=r.join("."),c=u`“<bdi>${s.word}</bdi>”`;return u`<p class="hint" data-effects>
What each head does for ${c}${a}: without ${l} its log odds of ${pt(s.own,2)}
fall by ${pt(n.statistics.effect[r[0]][r[1]],2)}, more than without any other
head here. The bar above a map is as long as its head's effect, and red if the word gains
without it. Without all heads of a layer they fall by
${n.layers.map((h,d)=>`${pt(h,2)} (layer ${d})`).join(", ")}.
</p>`}function Fs(t,e,n){let[s,o]=e[n],r=Object.entries(t.statistics).map(([i,a])=>`${he(t,i).title} ${pt(a[s][o],2)}`);return`Layer ${s}, head ${o}: ${r.join(", ")}.`}function ki(t,e,n){let s=Math.max(t.parentElement.clientWidth-2,200),o=s-2*sn+st,r=e.shape[1],i=Math.max(Math.min(Math.floor(o/(yi+st)),r),1),a=i;for(;r%a;)a-=1;2*a<=i&&(a=i);let l=Math.min(Math.floor(o/a)-st,150),[,,c,h]=e.shape,d=Math.min(Math.max(Math.round(l*c/h),24),2*l);return{width:s,side:l,tall:d,across:a,down:Math.ceil(n.length/a)}}async function Hs(t,e,n,s,o){let{kind:r,scale:i}=t.state,{attention:a}=t,l=await t.source.thumbnails(r);if(!e.isConnected||t.state.view!=="heads")return;let{width:c,side:h,tall:d,across:f,down:m}=ki(e,a,n);e.grid={side:h,tall:d,across:f},t.light=()=>e.isConnected&&t.state.view==="heads"&&Hs(t,e,n,s,o);let w=D(e,c,m*(d+q+st)),g=F(e),{effect:b}=a.statistics,y=Math.max(...b?.flat().map(Math.abs)??[]),v=new OffscreenCanvas(l.columns,l.rows),$=Dt();w.imageSmoothingEnabled=!1,n.forEach(([x,k],C)=>{let L=sn+C%f*(h+st),ot=Math.floor(C/f)*(d+q+st);Ai(v,l,x*a.shape[1]+k,$,i),w.drawImage(v,L,ot+q,h,d),z(w,11),w.fillStyle=g.faint;let Sn=a.statistics[o];w.fillText(`${x}.${k}${Sn?`  ${pt(Sn[x][k],2)}`:""}`,L,ot+q/2),b&&y&&(w.fillStyle=qt(Math.sign(b[x][k])),w.fillRect(L,ot+q-4,h*Math.abs(b[x][k])/y,3));let Ft=C===s?2:.5;w.strokeStyle=C===s?g.accent:g.line,w.lineWidth=C===s?3:1,w.strokeRect(L-Ft,ot+q-Ft,h+2*Ft,d+2*Ft),vi(w,t,[L,ot+q,h,d],g),t.state.off?.split(",").includes(`${a.kind}.${x}.${k}`)&&(w.strokeStyle=g.lit,w.lineWidth=2,w.beginPath(),w.moveTo(L,ot+q+d),w.lineTo(L+h,ot+q),w.stroke())})}function vi(t,{lit:e,attention:n},[s,o,r,i],a){if(!e)return;let[,,l,c]=n.shape;t.strokeStyle=a.lit,t.lineWidth=1.5,n.rows===e.text&&t.strokeRect(s-1,o+i*e.at/l,r+2,Math.max(i/l,3)),n.columns===e.text&&t.strokeRect(s+r*e.at/c,o-1,Math.max(r/c,3),i+2),n.columns==="read"&&e.text==="target"&&e.at+1<c&&t.strokeRect(s+r*(e.at+1)/c,o-1,Math.max(r/c,3),i+2)}function Ai(t,{rows:e,columns:n,bytes:s},o,r,i){let a=new ImageData(n,e),l=new Uint32Array(a.data.buffer),c=o*e*n;for(let h=0;h<l.length;h+=1){let d=s[c+h]/255;l[h]=r[_t(i==="root"?d:d*d)]}t.getContext("2d").putImageData(a,0,0)}function Mi(t){let{side:e,tall:n,across:s}=t.currentTarget.grid,[o,r]=X(t),i=Math.min(Math.max(Math.floor((o-sn)/(e+st)),0),s-1);return Math.floor(r/(n+q+st))*s+i}function Rs(t,e,n){e[n]&&t.set({layer:e[n][0],head:e[n][1],view:"map"})}function Si(t,e,n,s){if(e.key==="Enter"||e.key===" "){e.preventDefault(),Rs(t,n,s);return}let{across:o}=e.currentTarget.grid,r=[Math.floor(s/o),s%o],i=B(e,r,[Math.ceil(n.length/o),o]);if(i===null)return;let a=Math.min(i[0]*o+i[1],n.length-1);t.set({layer:n[a][0],head:n[a][1],said:Fs(t.attention,n,a)})}function _i(t,e,n,s){let o=s.filter(a=>a!=="layer"),r=(a,l,c)=>pt(e.statistics[a][l][c],3),i=n.length>en?u`<p class="hint">The first ${en} of ${n.length}.</p>`:"";return u`${E("Heads as a table",u`<table>
${N("Layer","Head",...o.map(a=>he(e,a).title))}
<tbody>
${n.slice(0,en).map(([a,l])=>u`<tr>
<td>${a}</td>
<th scope="row">
<button
class="link"
aria-label="Open layer ${a}, head ${l}"
@click=${()=>t.set({layer:a,head:l,view:"map"})}
>
${l}
</button>
</th>
${o.map(c=>u`<td>${r(c,a,l)}</td>`)}
</tr>`)}
</tbody>
</table>`)}
${i}`}var Ti=34,Ds=9,Ei=110,Bs=20;function Us(t,e){let{state:n,words:s}=t,o=de(t,e,n.row,n.column);return u`
<h2>Heat map</h2>
<div class="bar">
${$t(t)} ${Yt(t)} ${ct(e)}
<button @click=${r=>Li(r)}>Save PNG</button>
</div>
<p class="hint">
${t.attention.name}. Rows: ${t.attention.row_title}. Columns:
${t.attention.column_title}.
${Gn(t.attention)}${t.attention.unwritten?" Grey cells did not exist yet.":""}
</p>
<div class="map" tabindex="-1">
<canvas
class="heatmap"
tabindex="0"
role="application"
aria-roledescription="heat map"
aria-label="Weights; arrow keys move. ${o}"
${S(r=>Ci(t,r,e))}
@pointermove=${r=>qs(t,r,e)}
@click=${r=>qs(t,r,e)}
@keydown=${r=>Ni(t,r,e)}
></canvas>
<div class="cursor" aria-hidden="true"></div>
</div>
<p class="readout" data-readout>${o}</p>
${Zt(t)}
<details class="twin" open>
<summary>The row of <bdi>${s.rows[n.row]}</bdi> as a table</summary>
${cn(t,e)}
</details>
`}function de(t,e,n,s){let{rows:o,columns:r}=t.words;if(Vs(t,e,n,s))return`${o[n]} (${n}) could not look at ${r[s]} (${s}).`;let i=e.at(n,s),a=1;for(let l of e.row(n))l>i&&(a+=1);return`${o[n]} (${n}) looks at ${r[s]} (${s}) with weight ${on(i)}, rank ${a} of ${r.length}.`}function on(t){return t>=.001||t===0?t.toFixed(4):t.toExponential(2)}function Vs(t,e,n,s){return t.attention.unwritten&&s>n&&e.at(n,s)===0}function rn(t,e){let n=Math.max(t.parentElement.clientWidth-2,240),s=n<520,o=c=>c>=Ds,[r,i]=s?[80,30]:[Ei,56],a=Math.min((n-r-i)/e.columns,Ti),l=window.devicePixelRatio||1;return o(a)||(a=Math.max(Math.min((n-38)/e.columns,Ds-.5),1/l)),a=a>=2?Math.floor(a*l)/l:a,o(a)?{cell:a,left:r,right:i,top:78,named:!0,ratio:l}:{cell:a,left:24,right:12,top:24,named:!1,ratio:l}}function Oi(t,{scale:e},n){let s=new OffscreenCanvas(t.columns,t.rows),o=new ImageData(t.columns,t.rows),r=new Uint32Array(o.data.buffer),i=Dt();for(let a=0,l=0;a<t.rows;a+=1){let c=t.row(a),h=e==="largest"?c[T(c,1)[0]]:1;for(let d=0;d<t.columns;d+=1,l+=1)r[l]=n&&n(a,d)?0:i[_t(qn(c[d],e,h))]}return s.getContext("2d").putImageData(o,0,0),s}function Ci(t,e,n){let s=rn(e,n),{cell:o,left:r,right:i,top:a,named:l}=s,[c,h]=[n.columns*o,n.rows*o],d=F(e),f=[n.rows,t.state.scale,d.unseen,c,e.parentElement.clientWidth].join();if(e.place=s,e.painted!==n||e.key!==f){e.painted=n,e.key=f;let m=D(e,r+c+i,a+h+2);m.fillStyle=d.unseen,m.fillRect(r,a,c,h),m.imageSmoothingEnabled=o*s.ratio<1,m.drawImage(Oi(n,t.state,(w,g)=>Vs(t,n,w,g)),r,a,c,h),m.strokeStyle=d.line,m.strokeRect(r-.5,a-.5,c+1,h+1),l?an(m,t.words,s,d):ln(m,n,s,d)}Lt(e,t.state.row,t.state.column)}function an(t,{rows:e,columns:n},{cell:s,left:o,right:r,top:i},a){z(t,Math.min(Math.max(s*.62,8),13)),t.fillStyle=a.ink,t.textAlign="right",e.forEach((c,h)=>t.fillText(Z(t,c,o-8),o-5,i+(h+.5)*s)),t.textAlign="left";let l=o+n.length*s+r;n.forEach((c,h)=>{let d=Math.SQRT2*(l-o-(h+.5)*s)-8;t.save(),t.translate(o+(h+.5)*s,i-5),t.rotate(-Math.PI/4),t.fillText(Z(t,c,Math.min(96,d)),0,0),t.restore()})}function ln(t,e,{cell:n,left:s,top:o},r,i=1){z(t,10),t.fillStyle=r.faint;let a=[10,20,50,100,200,500,1e3].find(l=>l*n>=40)??5e3;t.textAlign="center";for(let l=0;l<e.columns;l+=a)t.fillText(String(l*i),s+(l+.5)*n,o-8);t.textAlign="right";for(let l=0;l<e.rows;l+=a)t.fillText(String(l*i),s-3,o+(l+.5)*n)}function Lt(t,e,n){let{cell:s,left:o,top:r}=t.place,{style:i}=t.parentElement.querySelector(".cursor"),a=Math.max(s,6),[l,c]=[o+(n+.5)*s,r+(e+.5)*s];i.transform=`translate(${l-a/2}px, ${c-a/2}px)`,i.width=`${a}px`,i.height=`${a}px`}function ue(t,{rows:e,columns:n}){let{cell:s,left:o,top:r}=t.currentTarget.place,[i,a]=X(t),[l,c]=[Math.floor((a-r)/s),Math.floor((i-o)/s)];return l>=0&&c>=0&&l<e&&c<n?[l,c]:[]}function qs(t,e,n){let s=e.currentTarget,[o,r]=ue(e,n);o!==void 0&&(Lt(s,o,r),e.type==="click"?t.set({row:o,column:r,said:de(t,n,o,r)}):Jt(s.parentElement.nextElementSibling,de(t,n,o,r)))}function Ni(t,e,n){let{row:s,column:o}=t.state,r=B(e,[s,o],[n.rows,n.columns]);r!==null&&t.set({row:r[0],column:r[1],said:de(t,n,...r)})}function cn(t,e){let{row:n}=t.state,{columns:s}=t.words,o=e.row(n),r=T(o,Bs),i=Math.max(0,o.reduce((c,h)=>c+h,0)-r.reduce((c,h)=>c+o[h],0)),a=s.length-Bs,l=a>0?`The other ${a} keys together: ${on(i)}. `:"";return u`${E("The largest weights of the row",u`<table>
${N("Rank","Place","Word","Weight")}
<tbody>
${r.map((c,h)=>u`<tr>
<td>${h+1}</td>
<td>${c}</td>
<th scope="row"><bdi>${s[c]}</bdi></th>
<td>${on(o[c])}</td>
</tr>`)}
</tbody>
</table>`)}
<p class="hint">${l}Entropy of the row: ${e.entropy(n).toFixed(3)} nats.</p>`}function Li(t){let e=t.currentTarget.closest("main").querySelector("canvas.heatmap"),n=new OffscreenCanvas(e.width,e.height),s=n.getContext("2d");s.fillStyle=F(e).paper,s.fillRect(0,0,n.width,n.height),s.drawImage(e,0,0),n.convertToBlob({type:"image/png"}).then(o=>{let r=document.createElement("a");r.href=URL.createObjectURL(o),r.download="attention.png",r.click(),setTimeout(()=>URL.revokeObjectURL(r.href),1e3)})}var U=22,yt=16,zs=640;function Ks(t,e){let n=e*U;t.revealed!==e&&(t.revealed=e,(n<t.scrollTop||n+U>t.scrollTop+t.clientHeight)&&(t.scrollTop=n-t.clientHeight/2))}function hn(t,e,n){let s=e.parentElement.parentElement,o=Math.max(s.clientWidth-2,240),r=D(e,o,e.tall),i=F(e),{rows:a,columns:l}=t.words,c=Math.min(Math.max(o*.24,70),190),h=b=>b*U+U/2+4-s.scrollTop,d=Math.max(Math.floor(s.scrollTop/U)-1,0),f=d+Math.ceil(e.tall/U)+2,m=(b,y,v)=>ji(r,n.links(b,t.state.share,yt).links,h(b),h,[c+6,o-c-6],y,v),w=n.rows>1?.35:1;for(let b=d;b<Math.min(f,n.rows);b+=1)b!==t.state.row&&m(b,i.faint,w);t.state.row>=d-40&&t.state.row<=f+40&&m(t.state.row,i.accent,1);let g=(b,y,v,$)=>{r.textAlign=v;for(let x=d;x<Math.min(f,b.length);x+=1)z(r,13,x===$?"bold":"normal"),r.fillStyle=x===$?i.accent:i.ink,r.fillText(Z(r,b[x],c-6),y,h(x))};g(a,c,"right",t.state.row),g(l,o-c,"left",-1)}function ji(t,e,n,s,[o,r],i,a){t.strokeStyle=i;for(let{key:l,weight:c}of e)t.globalAlpha=a<1?a*Math.min(.15+.85*c,1):Math.min(.45+.55*c,1),t.lineWidth=.8+4*c+(a<1?0:.5),t.beginPath(),t.moveTo(o,n),t.bezierCurveTo((o+r)/2,n,(o+r)/2,s(l),r,s(l)),t.stroke();t.globalAlpha=1}function Gs(t,e){let{state:n,words:s}=t,o=Math.max(e.rows,e.columns),r=Math.min(o*U+8,zs),{hidden:i,links:a}=e.links(n.row,n.share,yt);return u`
<h2>Links</h2>
<div class="bar">
${$t(t)} ${ct(e)}
<label class="choice"
><span>Weight shown: ${Math.round(100*n.share)} %</span>
<input
type="range"
min="5"
max="100"
step="5"
.value=${String(Math.round(100*n.share))}
@input=${l=>t.set({share:Number(l.target.value)/100})}
/></label>
<span class="badge" data-hidden
>hidden: ${(100*i).toFixed(0)} % of this row,
${(100*Wi(e,n.share)).toFixed(0)} % of all</span
>
</div>
<p class="hint">
On the left ${t.attention.row_title}, on the right ${t.attention.column_title}. Each word
is linked to as few words as carry the chosen share of its weight, at most ${yt}. Choose a
word on the left. ${t.attention.says}
</p>
<div
class="links"
@scroll=${l=>hn(t,l.currentTarget.querySelector("canvas"),e)}
tabindex="-1"
>
<div
class="tall"
${S(l=>{l.style.height=`${o*U+8}px`,l.parentElement.style.maxHeight=`${r+2}px`})}
>
<canvas
tabindex="0"
role="application"
aria-roledescription="links"
aria-label="Links; up and down arrows choose a word. ${dn(t,e)}"
${S(l=>{l.tall=r,Ks(l.parentElement.parentElement,n.row),hn(t,l,e)})}
@click=${l=>Ii(t,l,e)}
@keydown=${l=>Pi(t,l,e)}
></canvas>
</div>
</div>
<p class="readout">${dn(t,e)}</p>
<details class="twin">
<summary>The row of <bdi>${s.rows[n.row]}</bdi> as a table</summary>
${cn(t,e)}
</details>
${a.length===0?u`<p class="hint">This word looks at nothing.</p>`:""}
`}function Wi(t,e){if(t.hiddenShare!==e){let[n,s]=[0,0];for(let o=0;o<t.rows;o+=1){n+=t.links(o,e,yt).hidden;for(let r of t.row(o))s+=r}t.hiddenShare=e,t.hiddenMass=s?n/s:0}return t.hiddenMass}function dn(t,e){let{rows:n,columns:s}=t.words,{links:o,hidden:r}=e.links(t.state.row,t.state.share,yt),i=o.slice(0,5).map(({key:a,weight:l})=>`${s[a]} (${l.toFixed(2)})`).join(", ");return`${n[t.state.row]} looks at ${i||"nothing"}; ${(100*r).toFixed(0)} % of its weight is hidden.`}function Ii(t,e,n){let s=e.currentTarget.parentElement.parentElement,o=Math.floor((X(e)[1]+s.scrollTop-4)/U);o>=0&&o<n.rows&&t.set({row:o})}function Pi(t,e,n){let s=B(e,[t.state.row,0],[n.rows,1]);s!==null&&t.set({row:s[0],said:""}).then(()=>t.set({said:dn(t,n)}))}var Qs="Probabilities are among all words, after the words that stand before; of a word in several sub-words the product.",Fi={written:{of:"source",one:"Written word",says:Qs,ends:""},next:{of:"text",one:"Next word",says:Qs,ends:"Words up to the changed one were predicted before it was read, so their probability stays."},masked:{of:"text",one:"Masked word",says:"Probabilities are among all words. Each masked word is named by what is most probable there in the text as it is.",ends:""},vectors:{of:"text",one:"Word",says:"The cosine is between the vectors that the last layer gives a word before and after: 1 is the same direction. Of a word in several sub-words their mean is taken.",ends:""}};function Ys(t){let{header:e}=t.source,{changes:{follows:n="words",unchanged:s,erased:o}}=e,{texts:r}=(t.source.base??t.source).header,i=n!=="words"?n:r.target?"written":"next",a={written:()=>r.target,next:()=>[...r.text.slice(1),s.likeliest.at(-1)[0][0]],masked:()=>s.likeliest.map(([[$]])=>$),vectors:()=>r.text}[i](),l=i==="next"?1:0,c=Object.keys(o).map(Number),h=t.source.header.changes.now,d=c.includes(t.state.changed)?t.state.changed:null,f=Hi(t,{kind:i,first:l,places:c,chosen:d,last:a.length-1}),m=$=>i==="masked"?`${a[$]} (masked place ${$+1})`:l&&$===a.length-1?`${a[$]} (what follows)`:a[$],w=$=>i==="vectors"?$.similarities:$.probabilities,g=$=>w(o[$])[f],b=c.filter($=>i==="next"?$<=f:i!=="vectors"||$!==f),y=b.length?b:c,v=d??y[T(y.map($=>-g($)),1)[0]];return{kind:i,...Fi[i],source:r.source??r.text,follow:a,written:f,named:m,numbers:w,unchanged:s,erased:o,places:c,place:v,all:h}}function Hi({state:t},{kind:e,first:n,places:s,chosen:o,last:r}){let i=c=>Math.min(Math.max(Number(c),0),r);if(e==="written")return i(t.row);if(t.next!==void 0)return i(t.next);if(e!=="next")return i(e==="masked"?0:t.row);let a=t.row-n,l=a>=Math.min(...s)?i(a):r;return Math.max(l,o??0)}function Zs(t){let e=Ys(t),{kind:n,source:s,follow:o,written:r,named:i,numbers:a,unchanged:l,erased:c,places:h,place:d,all:f}=e,m=f??c[d],w=t.engine&&t.source.answer.erasable.length?"Each word is erased in turn\u2026":`The ${e.of} has no word that can be erased.`;if(!m)return u`<h2>What if a word were missing?</h2>
<p class="hint">${w}</p>`;let g=($,x,k)=>n==="vectors"?[$,[],a(x)[k],[]]:[$,[a(l)[k]],a(x)[k],[x.likeliest[k].map(([C,L])=>`${C} ${R(L)}`).join(", ")]],b=$=>n==="vectors"?[$,"Cosine"]:[$,"Before","Now","Most probable now"],y=`Each ${e.one.toLowerCase()}`,v=u`“<bdi>${i(r)}</bdi>”`;return u`
<h2>${t.engine?"What if it were changed?":"What if a word were missing?"}</h2>
${t.engine?u`<p class="hint">
Press words above to erase them, switch heads off in “Heads”, or change the model.
</p>`:p}
<div class="bar">
${f?p:M("Without",h.map($=>[$,s[$]]),d,$=>Ri(t,Number($)))}
${M(e.one,o.map(($,x)=>[x,i(x)]),r,$=>t.set(n==="written"?{row:$}:{next:$}))}
</div>
<p class="summary" data-change>${Xs(e,m,d)}</p>
<div class="columns">
<section class="panel">
<h3>${y} ${f?"now":u`without “<bdi>${s[d]}</bdi>”`}</h3>
${Js(y,b("Word"),o.map(($,x)=>g(i(x),m,x)),r)}
</section>
${f?p:u`<section class="panel">
<h3>${v} without each word</h3>
${Js("Erasures",b("Without"),h.map($=>g(s[$],c[$],r)),h.indexOf(d))}
</section>`}
</div>
<p class="hint">
${e.says} An erased word keeps its place and has the mean embedding of the words of the
${e.of}. ${e.ends}
</p>
`}function Xs({kind:t,source:e,follow:n,named:s,numbers:o,written:r,unchanged:i,all:a},l,c){let h=o(l)[r],d=a?"As changed":`Without \u201C${e[c]}\u201D`;if(t==="vectors"){let b=n.map(($,x)=>x).filter($=>$!==c),y=b[T(b.map($=>-o(l)[$]),1)[0]],v=y===void 0?"":y===r?"; that of no other word moves more":`; of the other words that of \u201C${s(y)}\u201D moves most (${o(l)[y].toFixed(3)})`;return`${d}, the vector of \u201C${s(r)}\u201D has a cosine of ${h.toFixed(3)} with the one before${v}.`}if(t==="next"&&!a&&r<c)return`The probability of \u201C${s(r)}\u201D stays ${R(h)}: the model predicts it before it reads \u201C${e[c]}\u201D.`;let[f,m]=l.likeliest[r][0],w=o(i)[r],g=h<m?`; most probable there is \u201C${f}\u201D (${R(m)})`:"";return`${d}, the probability of \u201C${s(r)}\u201D `+(R(h)===R(w)?`stays ${R(h)}${g}.`:`is ${R(h)} instead of ${R(w)}${g}.`)}function Js(t,e,n,s){return E(t,u`<table>
${N(...e)}
<tbody>
${n.map(([o,r,i,a],l)=>u`<tr class=${l===s?"chosen":""}>
<th scope="row"><bdi>${o}</bdi></th>
${r.map(c=>u`<td>${R(c)}</td>`)}
<td>
<meter
min="0"
max="1"
value=${String(i)}
aria-label=${e.length>2?"probability":"cosine"}
></meter>
${R(i)}
</td>
${a.map(c=>u`<td><bdi>${c}</bdi></td>`)}
</tr>`)}
</tbody>
</table>`)}function Ri(t,e){t.state.changed=e;let n=Ys(t);t.set({changed:e,said:Xs(n,n.erased[e],e)})}var ft=(t,e)=>Math.floor(t/e),to=(t,e)=>t-e*ft(t,e),Di=t=>e=>t.some(([n,s])=>e>=n&&e<=s),so={full:[[],()=>()=>!0],causal:[[],()=>(t,e)=>e<=t],sliding_window:[["size"],t=>(e,n)=>Math.abs(e-n)<=t>>1],causal_window:[["size"],t=>(e,n)=>n<=e&&e-n<t],diagonals:[["back","ahead"],(t=null,e=null)=>(n,s)=>(t===null||s-n>=-t)&&(e===null||s-n<=e)],prefix:[["length"],t=>(e,n)=>n<t],key_span:[["start","stop"],(t=0,e=null)=>(n,s)=>s>=t&&(e===null||s<e)],lattice:[["stride"],t=>(e,n)=>(e-n)%t===0],strided:[["stride","local"],(t,e=!0)=>(n,s)=>(n-s)%t===0||e&&Math.abs(n-s)<t],dilated_window:[["size","dilation"],(t,e)=>(n,s)=>(n-s)%e===0&&Math.abs(n-s)<=e*(t>>1)],same_block:[["size","offset"],(t,e=0)=>(n,s)=>ft(n-e,t)===ft(s-e,t)],summary:[["stride","last"],(t,e=1)=>(n,s)=>to(s,t)>=t-e],fixed:[["stride","summary","local"],(t,e=1,n=!0)=>(s,o)=>to(o,t)>=t-e||n&&ft(s,t)===ft(o,t)],random_blocks:[["count","block","seed","past"],qi]},un={key_set:t=>(e,n)=>t(n),query_set:t=>e=>t(e),global_tokens:t=>(e,n)=>t(e)||t(n)},Bi=[...Object.keys(so),...Object.keys(un),"per_head"],eo={all:null,true:!0,false:!1},fn=class{constructor(e){this.text=e,this.words=[];let n=/\s*([^\W\d]\w*|-?\d+(?!\w|\.\d)|\.\.|[()&|~,=])/y,s=e.trimEnd().length;for(;n.lastIndex<s;){let o=n.lastIndex,r=n.exec(e);if(!r)throw this.error(`\u201C${e.slice(o).trim().slice(0,20)}\u201D is not understood`);this.words.push(r[1])}this.at=0}error(e){return new Error(`The pattern \u201C${this.text.slice(0,80)}\u201D cannot be read: ${e}; an example is \u201Ccausal & sliding_window(4)\u201D.`)}take(e){return this.words[this.at]!==e?!1:(this.at+=1,!0)}need(e){if(!this.take(e))throw this.error(`\u201C${e}\u201D is missing`)}whole(){let e=this.either();if(this.at<this.words.length)throw this.error(`\u201C${this.words[this.at]}\u201D follows a pattern that is complete`);return e}either(){let e=[this.both()];for(;this.take("|");)e.push(this.both());return e.length===1?e[0]:(...n)=>e.some(s=>s(...n))}both(){let e=[this.single()];for(;this.take("&");)e.push(this.single());return e.length===1?e[0]:(...n)=>e.every(s=>s(...n))}single(){if(this.take("~")){let r=this.single();return(...i)=>!r(...i)}if(this.take("(")){let r=this.either();return this.need(")"),r}let e=this.words[this.at];if(!Bi.includes(e))throw this.error(e?`there is no pattern \u201C${e.slice(0,40)}\u201D here`:"a pattern is missing");if(this.at+=1,e==="per_head"){let r=this.listed(()=>this.either());return(i,a,l,c)=>r[c](i,a,l,c)}if(Object.hasOwn(un,e))return un[e](Di(this.listed(()=>this.run())));let[n,s]=so[e],o=[];for(let[r,i]of this.listed(()=>this.argument(),n)){let a=r===null?o.length:n.indexOf(r);if(a<0||a>=n.length)throw this.error(`${e} takes (${n.join(", ")})`);o[a]=i}if(o.length<s.length)throw this.error(`${e} takes (${n.join(", ")})`);return s(...o)}listed(e){let n=[];if(this.take("("))for(;!this.take(")");)n.length&&this.need(","),n.push(e());return n}argument(){return this.words[this.at+1]!=="="?[null,this.value()]:(this.at+=2,[this.words[this.at-2],this.value()])}value(){let e=this.words[this.at];return Object.hasOwn(eo,e)?eo[this.words[this.at++]]:this.number()}number(){let e=this.words[this.at];if(!/^-?\d{1,18}$/.test(e??""))throw this.error("a whole number is missing");return this.at+=1,Number(e)}run(){let e=this.number();return[e,this.take("..")?this.number():e]}};function qi(t,e=64,n=0,s=!1){let o=new Map;return(r,i,a)=>{let l=ft(r,e),c=s?l+1:Math.ceil(a/e),h=ft(i,e);if(c<=t)return h<c;let d=`${l} ${c}`;return o.has(d)||o.set(d,Ui(t,BigInt(n),BigInt(l),c)),o.get(d).has(h)}}function Ui(t,e,n,s){let o=new Set;for(let r=0;r<t;r+=1){let i=s-t+r,a=Vi(e,n,BigInt(r),BigInt(i+1));o.add(o.has(a)?i:a)}return o}var fe=t=>BigInt.asUintN(64,t);function Vi(t,e,n,s){let o=no(fe((e+1n)*0x9e3779b97f4a7c15n+t)),r=no(fe(o+(n+1n)*0xc2b2ae3d27d4eb4fn));return Number((r>>32n)*s>>32n)}function no(t){return t=fe((t^t>>30n)*0xbf58476d1ce4e5b9n),t=fe((t^t>>27n)*0x94d049bb133111ebn),t^t>>31n}function oo(t){let e=new fn(t).whole(),n=t.includes("per_head"),s=new Map;return(o,r,i)=>{let a=`${o} ${r} ${n?i:""}`,l=s.get(a);return l||(l=Int32Array.from({length:r},(c,h)=>h).filter(c=>e(o,c,r,i)),s.size>2e4&&s.clear(),s.set(a,l)),l}}var zi=["no pair is allowed","some pairs are allowed","all pairs are allowed"],mn=100,Ki=["Length","Allowed pairs","Share of all","Computed here","Backend","A query may look at"],Gi="Draw with the mouse, or press the space bar, to allow pairs and to forbid them; the text of the pattern follows.";function io(t){let{patterns:e}=t.source.header,n=Math.min(t.state.pattern,e.length-1),s=t.engine?Qi(t,e[n]):e[n],o=Math.min(t.state.panel,s.panels.length-1),r=[t.source.header.title,n,o,s.panels[o].text].join("/"),i=()=>t.pairs?.key===r&&t.pairs.source===t.source?t.pairs:null;i()||ta(t,s,o,r);let a=i(),l=s.panels[o];return u`
<h2>Who may look at whom?</h2>
<div class="bar">
${e.length>1?M("Used in",e.map(({name:c},h)=>[h,c]),n,c=>t.set({pattern:Number(c),panel:0})):p}
${s.panels.length>1?M("Heads",s.panels.map(({heads:c},h)=>[h,c.join(", ")]),o,c=>t.set({panel:Number(c)})):p}
${s.drawable?Kt(t,s.drawable):p}
<span class="badge">counted exactly</span>
</div>
<p class="summary">
<code><bdi>${l.text}</bdi></code
>: ${we(l.pairs)} of ${we(s.q_len*s.k_len)} pairs
(${bn(l.pairs,s.q_len*s.k_len)}).
</p>
<p class="hint">
Rows: queries. Columns: keys.
${s.rows.length?"Sub-words, as the model reads them. ":""}${s.q_start?`Queries are at positions ${s.q_start} to ${s.q_start+s.q_len-1}. `:""}${s.tile>1?`Each cell stands for ${s.tile} \xD7 ${s.tile} pairs. `:""}${s.note}${s.drawable?Gi:""}
</p>
${a?ea(t,a):u`<p class="hint">Unpacking…</p>`} ${sa(s.tile>1)}
${s.growth.length?oa(s):p}
${a?u`<details class="twin">
<summary>The ${s.tile>1?"rows":"queries"} as a table</summary>
${ra(a)}
</details>`:p}
`}function Qi(t,e){let{source:{header:{model:n},answer:s}}=t,o=n.kinds.find(({name:g})=>e.name.startsWith(`${g},`)),{kind:r,rows:i,columns:a}=o,l=g=>s.pieces[g==="read"?"target":g],c=We(t,r),h=c||e.text,d=l(i),f=l(a),m=h.includes("per_head")?t.source.header.attentions.find(g=>g.kind===r).shape[1]:0,w=g=>{let b=ao(h,o,d.length,f.length,g[0]);return{heads:g,text:h,states:b,shape:[d.length,f.length],pairs:b.reduce((y,v)=>y+v,0)/2}};return{...e,text:h,rows:d,columns:f,q_len:d.length,k_len:f.length,drawable:o,growth:c?[]:e.growth.slice(1),panels:m?Array.from({length:m},(g,b)=>w([b])):[w([])]}}function ao(t,{unwritten:e},n,s,o=0){let r=new Uint8Array(n*s),i;try{i=oo(e?`causal & (${t})`:t)}catch{return r}for(let a=0;a<n;a+=1)for(let l of i(a,s,o))r[a*s+l]=2;return r}var lo="\\(query_set\\([\\d., ]+\\) & key_set\\([\\d., ]+\\)\\)",Ji=new RegExp(`( \\| ${lo})+$`),Yi=new RegExp(`( & ~${lo})+$`);function Zi(t){let e=t.replace(Yi,"");return(e!==t&&e.includes("|")?e.replace(/^\((.*)\)$/s,"$1"):e).replace(Ji,"")}function ro(t){let e=[];for(let n of t)e.at(-1)?.[1]===n-1?e.at(-1)[1]=n:e.push([n,n]);return e.map(([n,s])=>n===s?n:`${n}..${s}`).join(", ")}function Xi({states:t,rows:e,columns:n,one:s,panel:o}){let r=Zi(o.text),i=ao(r,s.drawable,e,n,o.heads[0]),a=[[],[]];[2,0].forEach((c,h)=>{let d=new Map;for(let f=0;f<e;f+=1){let m=ro(Array.from({length:n},(w,g)=>g).filter(w=>t[f*n+w]===c&&i[f*n+w]!==c));m&&d.set(m,[...d.get(m)??[],f])}for(let[f,m]of d)a[h].push(`(query_set(${ro(m)}) & key_set(${f}))`)});let l=[r,...a[0]].join(" | ");return[a[1].length&&l.includes("|")?`(${l})`:l,...a[1].map(c=>`~${c}`)].join(" & ")}async function ta(t,e,n,s){let o=e.panels[n],[r,i]=o.shape,a=o.states??await t.source.bytes(o.place);t.pairs={key:s,source:t.source,one:e,panel:o,rows:r,columns:i,states:a},o.states||t.draw()}function ea(t,e){let n=co(t,e),s=wn(e,...n);return u`<div class="map" tabindex="-1">
<canvas
class="pattern"
tabindex="0"
role="application"
aria-roledescription="map of pairs"
aria-label="Pairs; arrow keys move. ${s}"
${S(o=>uo(t,o,e))}
@pointermove=${o=>gn(t,o,e)}
@click=${o=>gn(t,o,e)}
@pointerdown=${o=>na(t,o,e)}
@pointerup=${()=>me(t,e)}
@pointerleave=${()=>me(t,e)}
@keydown=${o=>{o.key===" "&&e.one.drawable&&(o.preventDefault(),$n(e,n,!e.states[n[0]*e.columns+n[1]]),me(t,e));let r=B(o,n,[e.rows,e.columns]);r&&t.set({pair:r,said:wn(e,...r)})}}
></canvas>
<div class="cursor" aria-hidden="true"></div>
</div>
<p class="readout" data-readout>${s}</p>`}function co(t,{rows:e,columns:n}){let[s,o]=t.state.pair??[0,0];return[Math.min(s,e-1),Math.min(o,n-1)]}function ho({states:t,columns:e,one:n},s){let o=[],r=0;for(let a=0;a<e;a+=1)t[s*e+a]&&(r+=1,o.length&&o[o.length-1][1]===a-1?o[o.length-1][1]=a:o.push([a,a]));let i=o.slice(0,6).map(([a,l])=>{let[c,h]=[a*n.tile,Math.min((l+1)*n.tile,n.k_len)-1];return c===h?`${c}`:`${c} to ${h}`}).join(", ");return{count:r,named:i+(o.length>6?` and ${o.length-6} more spans`:"")}}function wn(t,e,n){let{one:s,states:o,columns:r,rows:i}=t,a=o[e*r+n];if(s.tile>1){let w=(g,b)=>`${g*s.tile} to ${Math.min((g+1)*s.tile,b)-1}`;return`Queries ${w(e,s.q_len)}, keys ${w(n,s.k_len)}: ${zi[a]}.`}let l=(w,g)=>w.length?`${g} \u201C${w[g]}\u201D`:`${g}`,{count:c,named:h}=ho(t,e),d=0;for(let w=0;w<i;w+=1)d+=o[w*r+n]?1:0;let[f,m]=[l(s.rows,e),l(s.columns,n)];return`Query ${f} ${a?"may":"may not"} look at key ${m}. It may look at ${c} of ${r} keys${c?`: ${h}`:""}; ${d} of ${i} queries may look at this key.`}function uo(t,e,n){let{one:s,rows:o,columns:r,states:i}=n,a=rn(e,{rows:o,columns:r});s.rows.length||Object.assign(a,{named:!1,left:40,right:16,top:24});let{cell:l,left:c,right:h,top:d}=a,f=F(e);e.place=a;let m=D(e,c+r*l+h,d+o*l+2),w=l>=8?1:0,g=new OffscreenCanvas(r,o),b=g.getContext("2d");m.fillStyle=f.unseen,m.fillRect(c,d,r*l,o*l);for(let y=0;y<o;y+=1)for(let v=0;v<r;v+=1){let $=i[y*r+v];if(!$)continue;let[x,k,C,L]=w?[m,c+v*l,d+y*l,l-w]:[b,v,y,1];x.globalAlpha=$===1?.45:1,x.fillStyle=f.accent,x.fillRect(k,C,L,L)}m.globalAlpha=1,m.imageSmoothingEnabled=l<1,w||m.drawImage(g,c,d,r*l,o*l),a.named?an(m,s,a,f):ln(m,{rows:o,columns:r},a,f,s.tile),Lt(e,...co(t,n))}function gn(t,e,n){let s=e.currentTarget,[o,r]=ue(e,n);if(o===void 0)return;Lt(s,o,r),n.stroke&&($n(n,[o,r],n.stroke.allow),uo(t,s,n));let i=wn(n,o,r);e.type==="click"?(e.pointerType==="touch"&&n.one.drawable&&$n(n,[o,r],!n.states[o*n.columns+r]),me(t,n),t.set({pair:[o,r],said:i})):Jt(s.parentElement.nextElementSibling,i)}function na(t,e,n){let[s,o]=ue(e,n);s===void 0||!n.one.drawable||e.button||e.pointerType==="touch"||(n.stroke={allow:!n.states[s*n.columns+o]},gn(t,e,n))}function $n(t,[e,n],s){t.one.drawable.unwritten&&n>e||(t.states[e*t.columns+n]=s?2:0,t.drawn=!0)}function me(t,e){e.stroke=null,e.drawn&&(e.drawn=!1,zt(t,e.one.drawable.kind,Xi(e)))}function sa(t){return u`<p class="legend">
<i class="allowed"></i><span>${t?"all allowed":"may look"}</span>
${t?u`<i class="allowed some"></i><span>some allowed</span>`:p}
<i class="masked"></i><span>${t?"none allowed":"may not look"}</span>
</p>`}function oa(t){return u`<h3>How it grows with the length</h3>
${E("Pairs by length",u`<table data-growth>
${N(...Ki)}
<tbody>
${t.growth.map(({length:e,pairs:n,of:s,computed:o,backend:r},i)=>{let a=i===0&&!t.drawable;return u`<tr>
<th scope="row">${we(e)}${a?" (shown)":""}</th>
<td>${we(n)}</td>
<td>${bn(n,s)}</td>
<td>${o===null?"\u2014":bn(o,1)}</td>
<td>${r}</td>
<td>${ia(n/(s/(a?t.k_len:e)))} keys</td>
</tr>`})}
</tbody>
</table>`)}
<p class="hint">
Computed here: the share of all pairs that the backend computes which regard chooses on this
machine's CPU for heads of 64 numbers; short rows are computed in whole blocks. Where allowed
pairs grow as fast as the length, attention takes linear time.
</p>`}function ra(t){let{one:e,rows:n}=t,s=Array.from({length:Math.min(n,mn)},(o,r)=>r);return u`${E("Queries as a table",u`<table>
<thead>
<tr>
<th scope="col">${e.tile>1?"Queries from":"Query"}</th>
${e.rows.length?u`<th scope="col">Word</th>`:p}
<th scope="col">${e.tile>1?"Tiles":"Keys"}</th>
<th scope="col">Which</th>
</tr>
</thead>
<tbody>
${s.map(o=>{let{count:r,named:i}=ho(t,o);return u`<tr>
<td>${o*e.tile}</td>
${e.rows.length?u`<th scope="row"><bdi>${e.rows[o]}</bdi></th>`:p}
<td>${r}</td>
<td>${i||"none"}</td>
</tr>`})}
</tbody>
</table>`)}
${n>mn?u`<p class="hint">The first ${mn} of ${n}.</p>`:p}`}function we(t){return t.toLocaleString("en")}function ia(t){return t.toLocaleString("en",{maximumFractionDigits:1})}function bn(t,e){let n=100*t/e;return`${n>=.1||n===0?n.toFixed(1):n.toPrecision(2)} %`}var ge=class{constructor({model:e},n=document){let s=a=>n.getElementById(a).textContent,[o,r]=[s("regard-model"),s("regard-tensors")],i=this.waiting=new Map;this.model=e,this.words=JSON.parse(o).words??[],this.worker=window.regardWorker,this.worker.onmessage=({data:{id:a,answer:l,error:c}})=>{let{done:h,fail:d}=i.get(a);i.delete(a),c===void 0?h(l):d(new Error(c))},this.ready=this.#t("load",{text:o,packed:r,digest:e.digest}),this.ready.catch(()=>{}),this.last=0}#t(e,n){return new Promise((s,o)=>{let r=this.last=(this.last??0)+1;this.waiting.set(r,{done:s,fail:o}),this.worker.postMessage({...n,id:r,ask:e})})}async ask(e,n){return await this.ready,this.#t(e,n)}async run(e){let{target:n,probabilities:s,text:o,unknown:r,attention:i}=await this.ask("run",e),a=([c,...h],d)=>Array.from({length:c},(f,m)=>{let w=d.subarray(m*d.length/c,(m+1)*d.length/c);return h.length?a(h,w):w[0]}),l=Object.entries(i).map(([c,{shape:h,weights:d}])=>[c,a(h,d)]);return{target:n,probabilities:s,text:o,unknown:r,attention:Object.fromEntries(l)}}async play(e,n){let{changed:s,...o}=Vt(n);this.plain?.given.source!==o.source&&(this.plain=new nt(e,o,await this.ask("run",o)));let{plain:r}=this;if(!Object.keys(s).length)return r;let i={...o,...s},a=r.answer.follows===void 0?r.answer.ids.target:[r.answer.follows];return new nt(e,i,await this.ask("run",{...i,against:a}),r)}};var $e={erase:{title:"Erasure",says:"Each word is erased in turn. A positive number is how much the model's preference for the word falls."},gradients:{title:"Integrated gradients",says:"The preference for the word is divided among the words that were read. Negative numbers speak against it."},attention:{title:"Raw attention",says:"Where all heads look on average while the word is written. It does not say what the model uses."},rollout:{title:"Attention rollout",says:"Attention multiplied through all layers. A weak lens: it ignores what the layers compute."}},aa=2;function mo(t){let{header:e}=t.source,n=e.texts[e.written],s=d=>e.explained[d]||t.engine&&n[d]!=="<begin>"&&n[d]!=="<end>",o=s(t.state.place??e.chosen)?t.state.place??e.chosen:e.chosen,r=d=>t.set({place:d,row:d,said:ca(e.explained[d])}),i=e.explained[o];i||bt(t);let a=u`<h2>What does this word depend on?</h2>
${e.texts.target?p:u` <p class="hint">Choose a word:</p>
<div class="words" role="group" aria-label="Words to explain">
${n.map((d,f)=>s(f)?u`<button
class="word"
aria-pressed=${f===Number(o)?"true":"false"}
@click=${()=>r(f)}
>
<bdi>${d}</bdi>
</button>`:u`<span class="word plain"><bdi>${d}</bdi></span>`)}
</div>`}`;if(!i?.length)return u`${a}
<p class="hint" role="status">
${i?"Nothing was read before this word.":"Computing what it depends on\u2026"}
</p>`;let l=i.find(d=>d.lens===(t.state.lens??"erase"))??i[0],c=i.find(d=>d.lens==="attention"),h=c&&c!==l?fo(t,c,u`<h3>${$e.attention.title}</h3>`):p;return u`${a}
<p class="question">
Why <strong><bdi>${l.word}</bdi></strong> rather than ${la(l.others)}? Log odds
${l.log_odds.toFixed(2)}, probability ${l.probability.toFixed(3)} among these.
</p>
<div class="columns">
${fo(t,l,u`<h3>By a lens</h3>
${M("Lens",i.map(d=>[d.lens,$e[d.lens].title]),l.lens,d=>t.set({lens:d}))}`)}
${h}
</div>
<p class="hint">
The words that <bdi>${l.word}</bdi> is compared with are those that the model found most
probable beside it, unless others were asked for. “<bdi>&lt;begin&gt;</bdi>” and
“<bdi>&lt;end&gt;</bdi>” are never erased.
</p> `}function la(t){return t.map((e,n)=>u`${n?n===t.length-1?" or ":", ":""}<bdi>${e}</bdi>`)}var ca=t=>t?.length?wo(t[0]):"";function wo(t){let{title:e}=$e[t.lens],n=i=>T(i.map(([,a])=>a),aa).filter(a=>i[a][1]>0).map(a=>`\u201C${i[a][0]}\u201D (${pn(t,i[a][1])})`).join(", then ")||"none of these words";if(t.lens!=="attention"&&t.lens!=="rollout")return`${e}: \u201C${t.word}\u201D depends most on ${n([...t.source,...t.written])}.`;let s=[[t.source,"in the source"],[t.written,"in what was written"]].filter(([i])=>i.length),o=s.map(([i,a])=>`${s.length>1?`${a} `:""}at ${n(i)}`).join("; "),r=s.length>1?" The weights of each side sum to 1.":"";return`${e}: \u201C${t.word}\u201D looks most ${o}.${r}`}function pn(t,e){return t.lens==="attention"||t.lens==="rollout"?e.toFixed(2):`${e<0?"\u2212":"+"}${Math.abs(e).toFixed(2)}`}function fo(t,e,n){let s=Math.max(...[...e.source,...e.written].map(([,r])=>Math.abs(r)),0),o=[["In the source",e.source],["In what was already written",e.written]];return u`<section class="panel" data-lens=${e.lens}>
<div class="bar">${n}</div>
<p class="summary">${wo(e)}</p>
${o.map(([r,i])=>i.length?u`<h4>${r}</h4>
<div class="words">
${i.map(([a,l])=>ha(t,e,a,l,s))}
</div>`:p)}
<p class="hint">${$e[e.lens].says} <span class="faint">${e.cost}.</span></p>
</section>`}function ha(t,e,n,s,o){let i=e.lens==="attention"||e.lens==="rollout"?Tt(o?s/o:0):Ut(s,o),a=`${n}: ${pn(e,s)}`;if(e.lens==="erase"){let l=1/(1+Math.exp(-(e.log_odds-s)));a+=`; without it the probability of ${e.word} is ${l.toFixed(3)} instead of ${e.probability.toFixed(3)}`}return u`<span class="scored" title=${a}
><span class="word" .style=${i}><bdi>${n}</bdi></span>
<small>${pn(e,s)}</small></span
>`}function xn({state:{motion:t}}){return t?t==="on":!matchMedia("(prefers-reduced-motion: reduce)").matches}function jt({indices:t={}},{rows:e,columns:n}){let s=o=>o?Math.min(t[yn(o)]??0,o.size-1):0;return s(e)*n.size+s(n)}var yn=({unit:t,labels:e,size:n})=>`${t} ${e??n}`;function be(t,{rows:e,columns:n},s){t.indices={...t.indices,[yn(n)]:s%n.size,...e?{[yn(e)]:Math.floor(s/n.size)}:{}},t.draw()}function go(t,e,n){let s=e.getBoundingClientRect(),{flight:o}=t;if(t.flight={step:n,box:s,text:e.textContent},!o||o.step===n||!xn(t))return;let r=document.createElement("span");r.className="flying",r.textContent=o.text,e.closest(".step").append(r);let i=({left:a,top:l})=>({transform:`translate(${a}px, ${l}px)`});r.animate([i(o.box),i(s)],{duration:700,easing:"ease-in-out"}).finished.then(()=>r.remove(),()=>r.remove())}var da="http://www.w3.org/1998/Math/MathML",ua=new Set(["math","mrow","mi","mn","mo","mtext","msub","msup","msubsup","mfrac","msqrt"]);function kn([t,...e]){let n=document.createElementNS(da,ua.has(t)?t:"mtext");return t==="math"&&n.setAttribute("display","block"),t==="mo"&&"()[]|".includes(e[0])&&n.setAttribute("stretchy","false"),n.append(...e.map(s=>Array.isArray(s)?kn(s):s)),n}var G=16,$o=1024,vn=20;function po(t,e,n,s){if(s.words)return u`<ol class="words">
${s.words.map(b=>u`<li class="word"><bdi>${b}</bdi></li>`)}
</ol>`;let{values:o,rows:r,columns:i,only:a,before:l}=s,c=jt(t,s),h=b=>b.labels===null?null:e.record.labels[b.labels],d=a===null?p:u`<p class="hint">
Too many numbers to store for every word; these are those of the word that was followed
when the page was made.
</p>`;if(!r&&h(i)&&i.size>2*vn)return u`${d}${fa(n,s,h(i))}`;let f=r?Math.min(i.size,Math.max(Math.floor($o/r.size),1)):Math.min(i.size,$o),m=i.size-f,w=r?Array.from({length:r.size},(b,y)=>({head:bo(r,h(r),y),from:y*i.size,to:y*i.size+f})):h(i)?[{head:"",from:0,to:f}]:Array.from({length:Math.ceil(f/G)},(b,y)=>({head:`${y*G} to ${Math.min((y+1)*G,f)-1}`,from:y*G,to:Math.min((y+1)*G,f)})),g=r||h(i);return u`${d}
${E("Numbers of the step",u`<table class="numbers">
<thead>
<tr>
<td></td>
${Array.from({length:g?f:Math.min(G,f)},(b,y)=>u`<th scope="col">
${g?u`<bdi>${bo(i,h(i),y)}</bdi>`:`+${y}`}
</th>`)}
</tr>
</thead>
<tbody>
${w.map(({head:b,from:y,to:v})=>u`<tr>
${b?u`<th scope="row"><bdi>${b}</bdi></th>`:u`<td></td>`}
${Array.from(o.subarray(y,v),($,x)=>y+x===c?u`<td
class="followed"
.style=${An(n,$,s.most)}
title=${String($)}
${S(k=>go(t,k,n))}
>
${Wt($)}
</td>`:u`<td
.style=${An(n,$,s.most)}
title=${String($)}
@click=${()=>be(t,s,y+x)}
>
${Wt($)}
</td>`)}
</tr>`)}
</tbody>
</table>`)}
<p class="hint" data-followed>
The number
followed${l?u` was ${Wt(l.value)} in “${l.title}”, and`:""} is
${Wt(o[c])}. Press another to follow it, or Shift and an arrow.
</p>
${m?u`<p class="hint">… ${m} more ${i.unit} in each row.</p>`:p}`}function bo(t,e,n){return e?e[n]:String(n)}function An(t,e,n){return e===-1/0?"":t.scale==="weights"?Tt(e):t.scale==="signed"?Ut(e,n):""}function Wt(t){if(t===-1/0)return"\u2212\u221E";if(Number.isInteger(t)&&Math.abs(t)<1e6)return String(t).replace("-","\u2212");let e=Math.abs(t)<1e3?t.toFixed(3):t.toPrecision(3);return(Number(e)===0?e.replace("-",""):e).replace("-","\u2212")}function fa(t,{values:e,most:n},s){let o=T(e,vn);return u`${E("The largest numbers of the step",u`<table class="numbers">
${N("Id","Sub-word","Number")}
<tbody>
${o.map(r=>u`<tr>
<td>${r}</td>
<th scope="row"><bdi>${s[r]}</bdi></th>
<td .style=${An(t,e[r],n)} title=${String(e[r])}>
${Wt(e[r])}
</td>
</tr>`)}
</tbody>
</table>`)}
<p class="hint">The ${vn} largest of ${e.length.toLocaleString("en")}.</p>`}var ma=1800;function yo(t){let e=$a(t);if(!e)return u`<h2>Step by step</h2>
<p class="hint" role="status">${t.walkFailed??"Computing every step\u2026"}</p>`;let{steps:n,note:s}=e.record;if(!n.length)return u`<h2>Step by step</h2>
<p class="hint">${s}</p>`;let o=Math.min(t.state.step,n.length-1),r=n[o],i=[...new Set(n.map(({section:d})=>d))],a=ba(t,e.record),l=`${o}/${a.join()}`;(t.stepShown?.key!==l||t.stepShown.walk!==e)&&pa(t,e,r,a,l);let c=t.stepShown?.key===l&&t.stepShown.walk===e?t.stepShown:null,h=t.engine&&t.source.header.walk&&(t.source.base||t.source.given.source!==t.source.header.model.text);return u`
<h2>Step by step</h2>
${h?wa(t.source.header.model.text):p}
<div class="bar">
${M("Part",i.map((d,f)=>[f,d]),i.indexOf(r.section),d=>It(t,e,n.findIndex(({section:f})=>f===i[d])))}
${Mn(e.record).map((d,f)=>M(f?"and of the source":"Word followed",e.record.labels[d].map((m,w)=>[w,m]),a[f],m=>t.set({followed:Object.assign([...a],{[f]:Number(m)})})))}
<button @click=${()=>It(t,e,o-1)} ?disabled=${o===0}>Previous step</button>
<button @click=${()=>It(t,e,o+1)} ?disabled=${o===n.length-1}>
Next step
</button>
<button
aria-pressed=${String(!!t.runs)}
@click=${()=>xa(t,e)}
?disabled=${o===n.length-1}
>
${t.runs?"Stop":"Run"}
</button>
<label class="choice"
><input
type="checkbox"
.checked=${xn(t)}
@change=${d=>t.set({motion:d.target.checked?"on":"off"})}
/><span>Motion</span></label
>
<span class="badge">step ${o+1} of ${n.length}</span>
</div>
<section
class="panel step"
tabindex="0"
aria-roledescription="step"
aria-label="Left and right arrows change the step. ${xo(r)}"
@keydown=${d=>va(t,d,e,o)}
>
<h3>${r.title}</h3>
${r.says?u`<p>${r.says}</p>`:p} ${r.formula?ga(r):p}
<pre><code>${r.line}</code></pre>
<p class="hint" data-shape>${ka(r)}</p>
${c?po(t,e,r,c):u`<p class="hint">Unpacking…</p>`}
</section>
<p class="hint">
${s} ${e.record.checks} results were compared with the model's own; the largest
difference is ${e.record.difference.toExponential(1)}. Numbers are computed with 64 bits
and stored with 32. Sentences that name a word are about
“<bdi>${e.record.words[e.record.word]}</bdi>”.
</p>
`}function wa(t){return u`<p class="hint">
These steps were stored when the page was made, for “<bdi>${t}</bdi>” and the model as
trained.
</p>`}function ga({formula:t}){let e=S(n=>n.replaceChildren(kn(t)));return u`<div class="formula" ${e}></div>`}function $a(t){let{source:e}=t;if(e.header.walk)return e.walk??={record:e.header.walk,source:e};if(e.walk||t.walkAsked===e)return e.walk;t.walkAsked=e,t.walkFailed=void 0,Ze("walk",e.given?.source??e.header.live.text).then(n=>{e.walk={record:n.walk,source:new H({},n.arrays)},t.draw()},n=>{t.walkFailed=n.message,t.draw()})}function Mn({steps:t,labels:e,words:n}){let s=e.findIndex(r=>r.length===n.length&&r.every((i,a)=>i===n[a])),o=new Set(s<0?[]:[s]);for(let{axes:r}of t)for(let i of r)i.unit==="words"&&i.chosen!==null&&i.labels!==null&&o.add(i.labels);return[...o]}function ba(t,e){return Mn(e).map((n,s)=>{let o=s===0?e.word:e.steps.flatMap(({axes:i})=>i).find(i=>i.labels===n&&i.chosen!==null).chosen,r=t.state.followed?.[s]??o;return Math.min(r,e.labels[n].length-1)})}async function pa(t,e,n,s,o){if(t.stepAsked===o&&t.stepFor===e)return;if(Object.assign(t,{stepAsked:o,stepFor:e}),n.words){Object.assign(t,{stepShown:{key:o,walk:e,words:n.words}}),t.draw();return}let r=await e.source.bytes(n.place),i=new Float32Array(r.buffer),a=Mn(e.record),{axes:l}=n,c=null,h=i;if(n.only!==void 0)c=n.only,l=l.filter((b,y)=>y!==c);else if(l.length>1){let b=l.findIndex(({chosen:y})=>y!==null);if(b>=0){let y=s[Math.max(a.indexOf(l[b].labels),0)];h=ya(i,l.map(({size:v})=>v),b,Math.min(y,l[b].size-1)),l=l.filter((v,$)=>$!==b)}}let d=l[l.length-1],f=0;for(let b of i)Number.isFinite(b)&&(f=Math.max(f,Math.abs(b)));let m=l.length>1?l[l.length-2]:null,{stepShown:w}=t,g=w?.values&&w.walk===e&&w.step!==n?{value:w.values[jt(t,w)],title:w.step.title}:null;t.stepShown={key:o,walk:e,step:n,values:h,rows:m,columns:d,most:f,only:c,before:g},t.draw()}function ya(t,e,n,s){let o=e.slice(n+1).reduce((a,l)=>a*l,1),r=e.slice(0,n).reduce((a,l)=>a*l,1),i=new Float32Array(r*o);for(let a=0;a<r;a+=1){let l=(a*e[n]+s)*o;i.set(t.subarray(l,l+o),a*o)}return i}function xa(t,e){let n=()=>{let s=t.state.view!=="walk"||t.state.step>=e.record.steps.length-1;t.runs=s?null:setTimeout(n,ma),s?t.draw():It(t,e,t.state.step+1)};return t.runs?(clearTimeout(t.runs),t.runs=null,t.draw()):n()}function ka(t){let e=t.axes.map(({size:n,unit:s})=>`${n.toLocaleString("en")} ${n===1?s.replace(/s$/,""):s}`).join(" \xD7 ");return t.words||t.axes.length<2?e:`${e}; shown for the followed word`}function xo(t){return`${t.section}: ${t.title}.`}function It(t,e,n){let{steps:s}=e.record,o=Math.min(Math.max(n,0),s.length-1);t.set({step:o,said:`Step ${o+1} of ${s.length}. ${xo(s[o])}`})}function va(t,e,n,s){if(e.target!==e.currentTarget)return;let{steps:o}=n.record,r=t.stepShown,i={ArrowRight:1,ArrowLeft:-1,ArrowDown:r?.rows?r.columns.size:G,ArrowUp:r?.rows?-r.columns.size:-G}[e.key];if(e.shiftKey&&i&&r?.values)return e.preventDefault(),be(t,r,Math.min(Math.max(jt(t,r)+i,0),r.values.length-1));let a=c=>{for(let h=s+c;h>=0&&h<o.length;h+=c)if(o[h].section!==o[s].section)return c>0?h:o.findIndex(({section:d})=>d===o[h].section);return c>0?o.length-1:0},l={ArrowRight:s+1,ArrowLeft:s-1,Home:0,End:o.length-1,PageDown:a(1),PageUp:a(-1)}[e.key];if(l!==void 0)return e.preventDefault(),It(t,n,l)}var Aa=({written:t,model:e,explained:n})=>!!(t&&(e||Object.keys(n).length)),pe=t=>t.attentions.length>0,mt={reader:{title:"Reader",draw:mo,fits:Aa},heads:{title:"Heads",draw:Ws,fits:pe},map:{title:"Heat map",draw:Us,fits:pe},links:{title:"Links",draw:Gs,fits:pe},change:{title:"What if",draw:Zs,fits:t=>!!t.changes},pattern:{title:"Pattern",draw:io,fits:t=>t.patterns.length>0},walk:{title:"Walk-through",draw:yo,fits:t=>!!(t.walk??t.live?.walk)},compare:{title:"Compare",draw:ts,fits:pe}},vo=["view","kind","layer","head","row","place","pick","by","scale","theme","share","sort","pattern","panel","step","motion","text",...Object.keys(W)],ye=class{constructor(e,n,s,o=null){Object.assign(this,{element:e,source:n,engine:o,stored:n.stored,past:[],hot:null}),this.origin=n.base??(o?n:void 0),this.state={view:"reader",kind:0,layer:0,head:"mean",row:ko(n.header),column:0,pick:0,by:"depends",scale:"linear",theme:"system",share:.8,sort:"layer",said:"",busy:"",pattern:0,panel:0,step:0},this.state.layer=(n.header.attentions[0]?.shape[0]??1)-1,Object.assign(this.state,o?{text:n.given.source,...W}:{},s),this.#n()}get attention(){return this.source.header.attentions[this.state.kind]}get words(){return this.source.words(this.attention)}set(e){return Object.assign(this.state,e),this.#n(),this.#s(),this.draw()}replace(e){let n=this.source,s=this.engine&&e.given.source===n.given.source,o=s?this.follows??"words":this.follows;if(this.source=e,this.follows=null,!s)for(let r of["changed","next","pair","followed"])delete this.state[r];if(o)this.#t(n,o);else{delete this.state.place,Object.assign(this,{origin:e.base??(this.engine?e:void 0),past:[]});let r=this.engine?this.state.kind:0;Object.assign(this.state,{kind:r,row:ko(e.header),column:0,pick:0})}return this.set({said:e.header.title})}#t(e,n){let{target:s}=this.source.header.texts;if(!s)return;let o=n==="words"?et(this.#e(e),e.header.texts.target,s):n;Object.assign(this.state,{place:o,row:o})}#e({header:e}){return Math.min(Number(this.state.place??e.chosen),e.texts.target.length-1)}async draw(){let{kind:e,layer:n,head:s}=this.state,o=this.turn=(this.turn??0)+1,r=this.attention?await this.source.head(e,n,s):null;o===this.turn&&(document.documentElement.dataset.theme=this.state.theme,this.weights=r,Oe(Ma(this,r),this.element),this.drawFirst(),this.element.dataset.ready="yes")}drawFirst(){Oe(Cs(this),this.element.querySelector(".first")),As(this.element)}#n(){let{state:e}=this,{header:n}=this.source,s=(l,c)=>Math.min(Math.max(Math.trunc(Number(l))||0,0),Math.max(c-1,0));(!Object.hasOwn(mt,e.view)||!mt[e.view].fits(n))&&(e.view=Object.keys(mt).find(l=>mt[l].fits(n))),e.kind=s(e.kind,n.attentions.length);let[o,r,i,a]=this.attention?.shape??[1,1,1,1];e.layer=s(e.layer,o),e.head=r===1?0:e.head==="mean"?"mean":s(e.head,r),e.row=s(e.row,i),e.column=s(e.column,a),e.pick=s(e.pick,3),e.share=Math.min(Math.max(Number(e.share)||.8,.05),1),e.pattern=s(e.pattern,n.patterns.length),e.step=Math.max(Math.trunc(Number(e.step))||0,0),e.panel=s(e.panel,n.patterns[e.pattern]?.panels.length??1),Object.hasOwn(Rt,e.scale)||(e.scale="linear"),["system","light","dark"].includes(e.theme)||(e.theme="system")}#s(){let e=Object.fromEntries(vo.filter(s=>s in this.state).map(s=>[s,String(this.state[s])]));parent!==window&&parent.postMessage({regard:e},"*");let n=new URLSearchParams(e);try{history.replaceState(null,"",`#${n}`)}catch{}}};function ko({written:t,chosen:e,attentions:[n],texts:s}){return t||!n?e:oe(s[n.rows])}function Ao(t){return Mo(Object.fromEntries(new URLSearchParams(t.slice(1))))}function Mo(t){return Object.fromEntries(vo.filter(e=>Object.hasOwn(t,e)).map(e=>[e,String(t[e])]))}function Ma(t,e){let{state:n,source:s}=t,o=Object.entries(mt).filter(([,r])=>r.fits(s.header));return u`
<main>
<div class="first"></div>
<nav role="tablist" aria-label="Views" @keydown=${le}>
${o.map(([r,i])=>u`<button
role="tab"
aria-selected=${String(r===n.view)}
aria-controls="view"
@click=${()=>t.set({view:r})}
>
${i.title}
</button>`)}
</nav>
<div id="view" role="tabpanel" aria-label=${mt[n.view].title}>
${mt[n.view].draw(t,e)}
</div>
</main>
<p class="said" role="status" aria-live="polite">${n.said}</p>
<footer>
${s.header.notes.map(r=>u`<p>${r}</p>`)}
<p>
Attention alone is not an explanation: a model can look at a word without using it. Made by
regard ${s.header.version}; this page loads nothing from a network.
</p>
${M("Colours",Object.entries({system:"of the system",light:"light",dark:"dark"}),n.theme,r=>t.set({theme:r}))}
</footer>
`}async function Sa(t,e){t.textContent="Unpacking the model\u2026";let n=new ge(e.header),s=Ao(location.hash),o={text:e.header.model.text,...W};window.regard={ready:n.ready,run:l=>n.run(l),engine:n,shown:[],coloured:[]};let[r,i]=[null,""];try{r=await n.play(e,{...o,...s})}catch(l){i=l.message;for(let c of Object.keys(o))delete s[c];r=await n.play(e,o)}(await n.ready).checked||(i||="This address is not secure (https), so the browser could not check the hash of the model."),t.replaceChildren();let a=new ye(t,r,s,n);return await a.set({busy:i}),window.regard.opened=performance.now(),a}async function _a(t){let e=Jn();if(e.header.model)return Sa(t,e);t.replaceChildren();let n=new ye(t,e,Ao(location.hash));return await n.draw(),n}var Pt=document.getElementById("regard-explorer");Pt&&_a(Pt).then(t=>{addEventListener("resize",()=>t.draw()),addEventListener("message",({source:e,data:n})=>{e===parent&&parent!==window&&n?.regard instanceof Object&&t.set(Mo(n.regard))})},t=>{Pt.textContent=t.message,Pt.setAttribute("role","alert"),Pt.dataset.ready="failed"});export{ye as App};
/*! Bundled license information:

lit-html/lit-html.js:
lit-html/directive.js:
  (**
   * @license
   * Copyright 2017 Google LLC
   * SPDX-License-Identifier: BSD-3-Clause
   *)
*/
