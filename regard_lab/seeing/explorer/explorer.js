/* sources 1311ed8bfbe26eeb1d5f6485c034d7b51a128d026cdddcfd91c01220722c3975 */
var Ce=globalThis,In=t=>t,qt=Ce.trustedTypes,Pn=qt?qt.createPolicy("lit-html",{createHTML:t=>t}):void 0,qn="$lit$",Z=`lit$${Math.random().toFixed(9).slice(2)}$`,Un="?"+Z,Ro=`<${Un}>`,dt=document,At=()=>dt.createComment(""),Mt=t=>t===null||typeof t!="object"&&typeof t!="function",Ne=Array.isArray,Ho=t=>Ne(t)||typeof t?.[Symbol.iterator]=="function",Me=`[ 	
\f\r]`,vt=/<(?:(!--|\/[^a-zA-Z])|(\/?[a-zA-Z][^>\s]*)|(\/?$))/g,Fn=/-->/g,Rn=/>/g,lt=RegExp(`>|${Me}(?:([^\\s"'>=/]+)(${Me}*=${Me}*(?:[^ 	
\f\r"'\`<>=]|("|')|))|$)`,"g"),Hn=/'/g,Bn=/"/g,zn=/^(?:script|style|textarea|title)$/i,Le=t=>(e,...n)=>({_$litType$:t,strings:e,values:n}),u=Le(1),Qa=Le(2),Ja=Le(3),St=Symbol.for("lit-noChange"),p=Symbol.for("lit-nothing"),Dn=new WeakMap,ct=dt.createTreeWalker(dt,129);function Vn(t,e){if(!Ne(t)||!t.hasOwnProperty("raw"))throw Error("invalid template strings array");return Pn!==void 0?Pn.createHTML(e):e}var Bo=(t,e)=>{let n=t.length-1,s=[],o,r=e===2?"<svg>":e===3?"<math>":"",i=vt;for(let a=0;a<n;a++){let l=t[a],c,d,h=-1,f=0;for(;f<l.length&&(i.lastIndex=f,d=i.exec(l),d!==null);)f=i.lastIndex,i===vt?d[1]==="!--"?i=Fn:d[1]!==void 0?i=Rn:d[2]!==void 0?(zn.test(d[2])&&(o=RegExp("</"+d[2],"g")),i=lt):d[3]!==void 0&&(i=lt):i===lt?d[0]===">"?(i=o??vt,h=-1):d[1]===void 0?h=-2:(h=i.lastIndex-d[2].length,c=d[1],i=d[3]===void 0?lt:d[3]==='"'?Bn:Hn):i===Bn||i===Hn?i=lt:i===Fn||i===Rn?i=vt:(i=lt,o=void 0);let m=i===lt&&t[a+1].startsWith("/>")?" ":"";r+=i===vt?l+Ro:h>=0?(s.push(c),l.slice(0,h)+qn+l.slice(h)+Z+m):l+Z+(h===-2?a:m)}return[Vn(t,r+(t[n]||"<?>")+(e===2?"</svg>":e===3?"</math>":"")),s]},_t=class t{constructor({strings:e,_$litType$:n},s){let o;this.parts=[];let r=0,i=0,a=e.length-1,l=this.parts,[c,d]=Bo(e,n);if(this.el=t.createElement(c,s),ct.currentNode=this.el.content,n===2||n===3){let h=this.el.content.firstChild;h.replaceWith(...h.childNodes)}for(;(o=ct.nextNode())!==null&&l.length<a;){if(o.nodeType===1){if(o.hasAttributes())for(let h of o.getAttributeNames())if(h.endsWith(qn)){let f=d[i++],m=o.getAttribute(h).split(Z),w=/([.?@])?(.*)/.exec(f);l.push({type:1,index:r,name:w[2],strings:m,ctor:w[1]==="."?_e:w[1]==="?"?Te:w[1]==="@"?Oe:$t}),o.removeAttribute(h)}else h.startsWith(Z)&&(l.push({type:6,index:r}),o.removeAttribute(h));if(zn.test(o.tagName)){let h=o.textContent.split(Z),f=h.length-1;if(f>0){o.textContent=qt?qt.emptyScript:"";for(let m=0;m<f;m++)o.append(h[m],At()),ct.nextNode(),l.push({type:2,index:++r});o.append(h[f],At())}}}else if(o.nodeType===8)if(o.data===Un)l.push({type:2,index:r});else{let h=-1;for(;(h=o.data.indexOf(Z,h+1))!==-1;)l.push({type:7,index:r}),h+=Z.length-1}r++}}static createElement(e,n){let s=dt.createElement("template");return s.innerHTML=e,s}};function gt(t,e,n=t,s){if(e===St)return e;let o=s!==void 0?n._$Co?.[s]:n._$Cl,r=Mt(e)?void 0:e._$litDirective$;return o?.constructor!==r&&(o?._$AO?.(!1),r===void 0?o=void 0:(o=new r(t),o._$AT(t,n,s)),s!==void 0?(n._$Co??=[])[s]=o:n._$Cl=o),o!==void 0&&(e=gt(t,o._$AS(t,e.values),o,s)),e}var Se=class{constructor(e,n){this._$AV=[],this._$AN=void 0,this._$AD=e,this._$AM=n}get parentNode(){return this._$AM.parentNode}get _$AU(){return this._$AM._$AU}u(e){let{el:{content:n},parts:s}=this._$AD,o=(e?.creationScope??dt).importNode(n,!0);ct.currentNode=o;let r=ct.nextNode(),i=0,a=0,l=s[0];for(;l!==void 0;){if(i===l.index){let c;l.type===2?c=new Tt(r,r.nextSibling,this,e):l.type===1?c=new l.ctor(r,l.name,l.strings,this,e):l.type===6&&(c=new Ee(r,this,e)),this._$AV.push(c),l=s[++a]}i!==l?.index&&(r=ct.nextNode(),i++)}return ct.currentNode=dt,o}p(e){let n=0;for(let s of this._$AV)s!==void 0&&(s.strings!==void 0?(s._$AI(e,s,n),n+=s.strings.length-2):s._$AI(e[n])),n++}},Tt=class t{get _$AU(){return this._$AM?._$AU??this._$Cv}constructor(e,n,s,o){this.type=2,this._$AH=p,this._$AN=void 0,this._$AA=e,this._$AB=n,this._$AM=s,this.options=o,this._$Cv=o?.isConnected??!0}get parentNode(){let e=this._$AA.parentNode,n=this._$AM;return n!==void 0&&e?.nodeType===11&&(e=n.parentNode),e}get startNode(){return this._$AA}get endNode(){return this._$AB}_$AI(e,n=this){e=gt(this,e,n),Mt(e)?e===p||e==null||e===""?(this._$AH!==p&&this._$AR(),this._$AH=p):e!==this._$AH&&e!==St&&this._(e):e._$litType$!==void 0?this.$(e):e.nodeType!==void 0?this.T(e):Ho(e)?this.k(e):this._(e)}O(e){return this._$AA.parentNode.insertBefore(e,this._$AB)}T(e){this._$AH!==e&&(this._$AR(),this._$AH=this.O(e))}_(e){this._$AH!==p&&Mt(this._$AH)?this._$AA.nextSibling.data=e:this.T(dt.createTextNode(e)),this._$AH=e}$(e){let{values:n,_$litType$:s}=e,o=typeof s=="number"?this._$AC(e):(s.el===void 0&&(s.el=_t.createElement(Vn(s.h,s.h[0]),this.options)),s);if(this._$AH?._$AD===o)this._$AH.p(n);else{let r=new Se(o,this),i=r.u(this.options);r.p(n),this.T(i),this._$AH=r}}_$AC(e){let n=Dn.get(e.strings);return n===void 0&&Dn.set(e.strings,n=new _t(e)),n}k(e){Ne(this._$AH)||(this._$AH=[],this._$AR());let n=this._$AH,s,o=0;for(let r of e)o===n.length?n.push(s=new t(this.O(At()),this.O(At()),this,this.options)):s=n[o],s._$AI(r),o++;o<n.length&&(this._$AR(s&&s._$AB.nextSibling,o),n.length=o)}_$AR(e=this._$AA.nextSibling,n){for(this._$AP?.(!1,!0,n);e!==this._$AB;){let s=In(e).nextSibling;In(e).remove(),e=s}}setConnected(e){this._$AM===void 0&&(this._$Cv=e,this._$AP?.(e))}},$t=class{get tagName(){return this.element.tagName}get _$AU(){return this._$AM._$AU}constructor(e,n,s,o,r){this.type=1,this._$AH=p,this._$AN=void 0,this.element=e,this.name=n,this._$AM=o,this.options=r,s.length>2||s[0]!==""||s[1]!==""?(this._$AH=Array(s.length-1).fill(new String),this.strings=s):this._$AH=p}_$AI(e,n=this,s,o){let r=this.strings,i=!1;if(r===void 0)e=gt(this,e,n,0),i=!Mt(e)||e!==this._$AH&&e!==St,i&&(this._$AH=e);else{let a=e,l,c;for(e=r[0],l=0;l<r.length-1;l++)c=gt(this,a[s+l],n,l),c===St&&(c=this._$AH[l]),i||=!Mt(c)||c!==this._$AH[l],c===p?e=p:e!==p&&(e+=(c??"")+r[l+1]),this._$AH[l]=c}i&&!o&&this.j(e)}j(e){e===p?this.element.removeAttribute(this.name):this.element.setAttribute(this.name,e??"")}},_e=class extends $t{constructor(){super(...arguments),this.type=3}j(e){this.element[this.name]=e===p?void 0:e}},Te=class extends $t{constructor(){super(...arguments),this.type=4}j(e){this.element.toggleAttribute(this.name,!!e&&e!==p)}},Oe=class extends $t{constructor(e,n,s,o,r){super(e,n,s,o,r),this.type=5}_$AI(e,n=this){if((e=gt(this,e,n,0)??p)===St)return;let s=this._$AH,o=e===p&&s!==p||e.capture!==s.capture||e.once!==s.once||e.passive!==s.passive,r=e!==p&&(s===p||o);o&&this.element.removeEventListener(this.name,this,s),r&&this.element.addEventListener(this.name,this,e),this._$AH=e}handleEvent(e){typeof this._$AH=="function"?this._$AH.call(this.options?.host??this.element,e):this._$AH.handleEvent(e)}},Ee=class{constructor(e,n,s){this.element=e,this.type=6,this._$AN=void 0,this._$AM=n,this.options=s}get _$AU(){return this._$AM._$AU}_$AI(e){gt(this,e)}};var Do=Ce.litHtmlPolyfillSupport;Do?.(_t,Tt),(Ce.litHtmlVersions??=[]).push("3.3.3");var We=(t,e,n)=>{let s=n?.renderBefore??e,o=s._$litPart$;if(o===void 0){let r=n?.renderBefore??null;s._$litPart$=o=new Tt(e.insertBefore(At(),r),r,void 0,n??{})}return o._$AI(t),o};var Ie={light:["#ffffff","#cfdff2","#7fabdf","#2c68b4","#0b2a5b"],dark:["#14181f","#1d3252","#2f5c9b","#6ba3e8","#d3e6ff"]},Pe={light:["#ffffff","#fbd9c9","#ee9a77","#c1452c","#6b1310"],dark:["#14181f","#4a2a22","#96452f","#e4795a","#ffd5c7"]},Kn={light:{ink:"#1d2430",faint:"#5b6472",line:"#d5dae2",paper:"#ffffff",panel:"#f6f7f9",accent:"#1a5fb4","on-accent":"#ffffff",unseen:"#e4e4e4",edge:"#8b919b",depends:"#b23c06"},dark:{ink:"#e7eaf0",faint:"#a4adbb",line:"#3b4350",paper:"#14181f",panel:"#1d232c",accent:"#8ab8ff","on-accent":"#10151c",unseen:"#3a3f47",edge:"#717a88",depends:"#ff9d61"},both:{followed:"#e8441f",flying:"#b93213"}};var Gn=Kn.both.followed,Qn={light:{weight:Ie.light,against:Pe.light},dark:{weight:Ie.dark,against:Pe.dark}};var Ut={linear:"0 to 1",root:"square root: small weights are visible",largest:"0 to the largest weight of each row"},Jn={};function Xn(){let{theme:t}=document.documentElement.dataset,e=t==="dark"||t!=="light"&&matchMedia("(prefers-color-scheme: dark)").matches?"dark":"light";return Jn[e]??=Object.fromEntries(Object.entries(Qn[e]).map(([n,s])=>[n,qo(s)])),Jn[e]}function qo(t){let e=t.map(n=>[1,3,5].map(s=>parseInt(n.slice(s,s+2),16)));return Uint8Array.from({length:768},(n,s)=>{let o=Math.floor(s/3)/255*(t.length-1),r=Math.min(Math.floor(o),t.length-2),[i,a]=[e[r][s%3],e[r+1][s%3]];return i+(a-i)*(o-r)})}function Ot(t){return t>=1?255:t>0?Math.floor(t*256):0}function Yn(t,e,n){return e==="root"?Math.sqrt(t):e==="largest"?n>0?t/n:0:t}function zt(){let{weight:t}=Xn(),e=new Uint32Array(256),n=new Uint8Array(e.buffer);for(let s=0;s<256;s+=1)n.set(t.subarray(3*s,3*s+3),4*s),n[4*s+3]=255;return e}function Vt(t){let{weight:e,against:n}=Xn(),s=3*Ot(Math.abs(t));return(t<0?n:e).subarray(s,s+3)}function Kt(t){return`rgb(${Vt(t)})`}function Gt(t,e){return Et(e?t/e:0)}function Et(t){let e=Vt(t);return`background:rgb(${e});color:${Uo(...e)?"#fff":"#000"}`}function Uo(t,e,n){let s=o=>o<=10?o/3294.6:((o/255+.055)/1.055)**2.4;return .2126*s(t)+.7152*s(e)+.0722*s(n)<.179}async function tt(t,e,n=performance.now()){if(Object.assign(t.state,e),t.playing)return t.waits=n;t.playing=!0;do{t.waits=null,t.began=n;try{let s=t.state.text.trim()?await t.engine.play(t.stored,t.state):null;t.state.busy=s?"":"The sentence is empty; write one.",s&&t.waits===null&&await t.replace(s),window.regard.shown.push(performance.now()-n)}catch(s){t.state.busy=s.message}n=t.waits??n}while(t.waits!==null);return t.playing=!1,t.draw()}var F={erase:"",off:"",factor:"1",warmth:"1",masks:""},R=({state:t,source:e})=>Number(t.place??e.header.chosen),D=({erase:t})=>t?t.split(".").map(Number):[],Fe=({off:t})=>t.split(",").filter(Boolean).map(e=>e.split(".")).map(([e,n,s])=>[e,Number(n),Number(s)]);function Qt(t){let{text:e,factor:n,warmth:s,masks:o}=t,r=D(t),i=Fe(t),a=Object.fromEntries(o.split(";").filter(l=>l.includes(":")).map(l=>l.split(/:(.*)/s).map(c=>c.trim())));return{source:e,changed:{...r.length?{erase:r}:{},...i.length?{off:i}:{},...Number(n)!==1?{scale:Number(n)}:{},...Number(s)!==1?{temperature:Number(s)}:{},...Object.keys(a).length?{patterns:a}:{}}}}function He({state:t},e){return Qt(t).changed.patterns?.[e]??""}function Jt(t,e,n,s){let{state:o,source:{header:{model:r}}}=t,i=o.masks.split(";").filter(c=>c&&!c.startsWith(`${e}:`)),a=n.replaceAll(";","").trim(),l=a===r.patterns[e]?"":a;return tt(t,{masks:[...i,...l?[`${e}:${l}`]:[]].join(";")},s)}var Re=/\b(sliding_window|causal_window)\((\d+)\)/;function Xt(t,{kind:e,name:n,columns:s}){let o=t.source.header.model.patterns[e],r=He(t,e),i=r||o,[,a,l]=i.match(Re)??[],c=Math.max(t.source.answer.pieces[s==="read"?"target":s].length-1,1),d=l===void 0?c:Math.min(a==="sliding_window"?l>>1:l-1,c),h=w=>{if(w===c&&!Re.test(o))return i.replace(/^(.*) & sliding_window\(\d+\)$/s,"$1").replace(/^\((.*)\)$/s,"$1");let g=`${a??"sliding_window"}(${a==="causal_window"?w+1:2*w})`;return l===void 0?`${i.includes("|")?`(${i})`:i} & ${g}`:i.replace(Re,g)},f=a==="causal_window"?`${d} back`:`\xB1${d}`,m=l===void 0?"all":f;return u`<label class="choice"
><span>Pattern, ${n.toLowerCase()}</span
><input
size="22"
placeholder=${o}
.value=${r}
@change=${w=>Jt(t,e,w.target.value)}
/></label>
<label class="choice"
><span>Window ${m}</span
><input
type="range"
min="0"
max=${c}
.value=${String(d)}
aria-label="Window, ${n.toLowerCase()}"
@input=${({target:w,timeStamp:g})=>Jt(t,e,h(+w.value),g)}
/></label>`}var zo=["text",...Object.keys(F)];function q(t,e,n){let s=t?t.split(n):[];return(s.includes(e)?s.filter(o=>o!==e):[...s,e]).join(n)}function L({state:t,origin:e}){return Object.keys(F).some(n=>String(t[n])!==F[n])||e!==void 0&&t.text!==e.given.source}function H(t,e){let n=Object.fromEntries(zo.map(s=>[s,t.state[s]]));return t.past.push({...n,place:R(t)}),t.follows="words",tt(t,e)}function Be(t){if(!L(t))return;let e=t.past.pop()??{...F,text:t.origin.given.source},{place:n,...s}=e;return t.follows=n??"words",tt(t,s)}var Vo=12;function Yt(t){let{state:{layer:e,head:n,off:s},attention:o}=t;if(!t.engine||n==="mean")return p;let r=`${o.kind}.${e}.${n}`;return u`<button @click=${()=>H(t,{off:q(s,r,",")})}>
Switch head ${e}.${n} ${s.split(",").includes(r)?"on":"off"}
</button>`}function ts(t){let{state:e,engine:n,source:s}=t,o=({target:r,timeStamp:i})=>{t.follows=null,tt(t,{text:r.value,erase:"",place:void 0},i)};return u`<form
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
${Go(e.text,n.words).map(r=>u`<option value=${r}></option>`)}
</datalist>
<button>Close</button>
</form>`}function es(t){let{state:e,source:{header:{model:n}}}=t,s=L(t);return u`<details class="tweaks">
<summary>Change the model</summary>
<div class="sheet" data-apart>
${Zn(t,"factor","Scores \xD7","Factor of all attention scores")}
${Zn(t,"warmth","Temperature","What the logits of words are divided by")}
${n.kinds.map(o=>Xt(t,o))}
<button
type="button"
?disabled=${!s}
@click=${()=>H(t,{...F,text:t.origin.given.source})}
>
Undo all changes
</button>
</div>
</details>`}var Ko=t=>(2**t).toFixed(3).replace(/\.?0+$/,"");function Zn(t,e,n,s){return u`<label class="choice"
><span>${n} ${Number(t.state[e]).toFixed(2)}</span
><input
type="range"
min="-3"
max="3"
step="0.1"
.value=${String(Math.log2(t.state[e]))}
aria-label=${s}
@input=${({target:o,timeStamp:r})=>tt(t,{[e]:Ko(o.value)},r)}
/></label>`}function Go(t,e){let[,n,s]=t.match(/^(.*?)([\p{L}\p{N}']+)$/su)??[null,"",""],o=[];for(let r=0;s&&r<e.length&&o.length<Vo;r+=1)e[r].length>s.length&&e[r].toLowerCase().startsWith(s.toLowerCase())&&o.push(`${n}${e[r]}`);return o}var ns=t=>(...e)=>({_$litDirective$:t,values:e}),Zt=class{constructor(e){}get _$AU(){return this._$AM._$AU}_$AT(e,n,s){this._$Ct=e,this._$AM=n,this._$Ci=s}_$AS(e,n){return this.update(e,n)}update(e,n){return this.render(...n)}};var Qo="system-ui, sans-serif",_=ns(class extends Zt{render(){}update({element:t},[e]){queueMicrotask(()=>t.isConnected&&e(t))}});function U(t,e,n){let s=window.devicePixelRatio||1,[o,r]=[Math.round(e*s),Math.round(n*s)];t.width!==o&&(t.width=o),t.height!==r&&(t.height=r),t.style.width=`${e}px`,t.style.height=`${n}px`;let i=t.getContext("2d");return i.setTransform(s,0,0,s,0,0),i.clearRect(0,0,e,n),i.textBaseline="middle",i}function Q(t,e,n="normal"){t.font=`${n} ${e}px ${Qo}`}function W(t){let e=getComputedStyle(t),n=s=>e.getPropertyValue(s).trim();return{ink:n("--ink"),faint:n("--faint"),line:n("--line"),accent:n("--accent"),unseen:n("--unseen"),lit:Gn,paper:n("--paper")}}function et(t,e,n){if(t.measureText(e).width<=n)return e;let[s,o]=[0,e.length];for(;s<o;){let r=s+o+1>>1;t.measureText(`${e.slice(0,r)}\u2026`).width<=n?s=r:o=r-1}return`${e.slice(0,s)}\u2026`}function te(t,e){for(let n of t.childNodes)n.nodeType===Node.TEXT_NODE&&(n.data=e)}function nt(t){let e=t.currentTarget.getBoundingClientRect();return[t.clientX-e.left,t.clientY-e.top]}var De={ArrowLeft:[0,-1],ArrowRight:[0,1],ArrowUp:[-1,0],ArrowDown:[1,0],PageUp:[-10,0],PageDown:[10,0]};function z(t,[e,n],[s,o]){let r=null;return t.key in De?r=[e+De[t.key][0],n+De[t.key][1]]:t.key==="Home"?r=[t.ctrlKey?0:e,0]:t.key==="End"&&(r=[t.ctrlKey?s-1:e,o-1]),r===null?null:(t.preventDefault(),[Math.min(Math.max(r[0],0),s-1),Math.min(Math.max(r[1],0),o-1)])}var Jo="http://www.w3.org/2000/svg",Ct=16,ss=2;async function Ue(t,e){let n=t.element.querySelector(".screen"),{text:s,width:o,height:r}=Xo(n);if(e==="svg")return qe(new Blob([s],{type:"image/svg+xml"}),"regard.svg");let i=new Image;i.src=`data:image/svg+xml,${encodeURIComponent(s)}`,await i.decode();let a=new OffscreenCanvas(ss*o,ss*r);return a.getContext("2d").drawImage(i,0,0,a.width,a.height),qe(await a.convertToBlob(),"regard.png")}async function os(t,e){let n=new OffscreenCanvas(t.width,t.height),s=n.getContext("2d");s.fillStyle=W(t).paper,s.fillRect(0,0,n.width,n.height),s.drawImage(t,0,0),qe(await n.convertToBlob(),`${e}.png`)}function qe(t,e){let n=document.createElement("a");n.href=URL.createObjectURL(t),n.download=e,n.click(),setTimeout(()=>URL.revokeObjectURL(n.href),1e3)}function Xo(t){let e=t.querySelector(".stage"),n=e.getBoundingClientRect(),s=t.querySelector(".answer").getBoundingClientRect().top,[o,r]=[n.width+2*Ct,n.bottom-s+2*Ct],i=bt("svg",{width:o,height:r,viewBox:`0 0 ${o} ${r}`}),[a,l]=[Ct-n.left,Ct-s],c=new OffscreenCanvas(1,1).getContext("2d",{willReadFrequently:!0}),d=f=>{c.clearRect(0,0,1,1),c.fillStyle=f,c.fillRect(0,0,1,1);let[m,w,g,$]=c.getImageData(0,0,1,1).data;return $?`rgb(${m},${w},${g})`:"none"};i.append(bt("rect",{width:o,height:r,fill:d(W(e).paper)}));let h=bt("g",{transform:`translate(${Ct} ${n.top+l})`,fill:"none"});for(let f of e.querySelectorAll("path")){let{stroke:m,strokeWidth:w,strokeDasharray:g,opacity:$}=getComputedStyle(f);h.append(bt("path",{d:f.getAttribute("d"),stroke:d(m),"stroke-width":w,"stroke-dasharray":g,"stroke-linecap":"round",opacity:$}))}i.append(h);for(let f of e.querySelectorAll(".t, .n, .was, .options i")){let{x:m,y:w,width:g,height:$}=f.getBoundingClientRect(),y=d(getComputedStyle(f).backgroundColor);i.append(bt("rect",{x:m+a,y:w+l,width:g,height:$,rx:5,fill:y}))}for(let f of[t.querySelector(".answer"),...e.querySelectorAll(".note, .line, .options")])Yo(f,(m,{x:w,y:g},$)=>{let{color:y,fontFamily:k,fontSize:b,fontWeight:x}=getComputedStyle($);c.font=`${x} ${b} ${k}`;let{fontBoundingBoxAscent:v}=c.measureText(m),E=bt("text",{x:w+a,y:g+l+v,fill:d(y),"font-family":k,"font-size":b,"font-weight":x,"text-decoration":$.closest(".was, .gone .t")?"line-through":"none"});E.textContent=m.replace(new RegExp("\\p{C}","gu"),"\uFFFD"),i.append(E)});return{text:new XMLSerializer().serializeToString(i),width:o,height:r}}function bt(t,e){let n=document.createElementNS(Jo,t);for(let[s,o]of Object.entries(e))n.setAttribute(s,o);return n}function Yo(t,e){let n=document.createTreeWalker(t,NodeFilter.SHOW_TEXT),s=document.createRange();for(;n.nextNode();){let o=n.currentNode;for(let{0:r,index:i}of o.data.matchAll(/\S+/g)){s.setStart(o,i),s.setEnd(o,i+r.length);let a=s.getBoundingClientRect();a.width&&e(r,a,o.parentElement)}}}function M(t,e,n,s){return u`<label class="choice"
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
>`}function pt(t,{mean:e=!0,kinds:n=!0}={}){let{state:s,source:o}=t,[r,i]=t.attention.shape,a=c=>Array.from({length:c},(d,h)=>[h,String(h)]),l=e&&i>1?[["mean",`mean of ${i}`]]:[];return u`
${n&&o.header.attentions.length>1?M("Attention",o.header.attentions.map((c,d)=>[d,c.name]),s.kind,c=>t.set({kind:c,layer:o.header.attentions[c].shape[0]-1})):p}
${M("Layer",a(r),s.layer,c=>t.set({layer:c}))}
${M("Head",[...l,...a(i)],s.head,c=>t.set({head:c}))}
${Yt(t)}
`}function ee(t,e=!0){let{state:n}=t,s=Object.entries(Ut).filter(([o])=>e||o!=="largest");return u` ${M("Scale",s,n.scale,o=>t.set({scale:o}))} `}function ze([t,e],{place:n=o=>o,note:s=""}={}){return u`<p class="legend">
<span>${t}</span
><canvas
width="160"
height="12"
role="img"
aria-label="Colours from ${t} to ${e}"
${_(o=>{let r=o.getContext("2d");for(let i=0;i<160;i+=1)r.fillStyle=Kt(n(i/159)),r.fillRect(i,0,1,12)})}
></canvas
><span>${e}</span>${s?u`<span>${s}</span>`:p}
</p>`}var Zo="(0.25 is in the middle)";function ne({state:{scale:t}},e=!0){return ze(["0",e&&t==="largest"?"the row's largest weight":"1"],{note:t==="root"?Zo:""})}function V(t){return u`<button @click=${({currentTarget:n})=>os(n.closest("main").querySelector(`canvas.${t}`),t)}>Save the map as PNG</button>`}function rs(t){return t.sums||"The weights of each row sum to 1."}function ht(t){return t.exact?u`<span class="badge" title="Weights are stored as 32-bit floating-point numbers."
>exact</span
>`:u`<span class="badge" title="Weights are stored as one byte each on a square-root scale."
>rounded to 0.004 or better</span
>`}function is(t){let e=new Float64Array(t.length),[n,s]=[-1/0,0];for(let o of t)o>n&&(n=o);for(let o=0;o<e.length;o+=1)s+=e[o]=Math.exp(t[o]-n);for(let o=0;o<e.length;o+=1)e[o]/=s;return e}function T(t,e,n=()=>!0){let s=[];for(let o=0;o<t.length;o+=1){if(s.length===e&&!(t[o]>t[s[e-1]])||!n(o))continue;let r=s.length;for(;r>0&&t[o]>t[s[r-1]];)r-=1;s.splice(r,0,o),s.length>e&&s.pop()}return s}var tr=48;function as(t=document){let e=JSON.parse(t.getElementById("regard-header").textContent);return new B(e,t.getElementById("regard-arrays").textContent)}var B=class{constructor(e,n){this.header=e,this.arrays=n,this.kept=new Map}async bytes([e,n]){let s=atob(this.arrays.slice(e,e+n)),o=new Uint8Array(s.length);for(let i=0;i<s.length;i+=1)o[i]=s.charCodeAt(i);let r=new Blob([o]).stream().pipeThrough(new DecompressionStream("deflate"));return new Uint8Array(await new Response(r).arrayBuffer())}words(e){let{texts:n}=this.header;return{rows:n[e.rows],columns:n[e.columns]}}head(e,n,s){let o=`${e}/${n}/${s}`,r=this.kept.get(o);return r?this.kept.delete(o):r=s==="mean"?this.#e(e,n):this.#t(e,n,s),this.kept.set(o,r),this.kept.size>tr&&this.kept.delete(this.kept.keys().next().value),r}async#t(e,n,s){let o=this.header.attentions[e],[,,r,i]=o.shape;if(o.exact){let c=await this.bytes(o.exact[n][s]);return new J(new Float32Array(c.buffer),r,i,!0)}let a=await this.bytes(o.bytes[n][s]),l=new Float32Array(a.length);for(let c=0;c<a.length;c+=1)l[c]=er[a[c]];return new J(l,r,i,!1)}async#e(e,n){let s=this.header.attentions[e].shape[1],o=[];for(let i=0;i<s;i+=1)o.push(await this.#t(e,n,i));let r=new Float32Array(o[0].values.length);for(let i of o)for(let a=0;a<r.length;a+=1)r[a]+=i.values[a]/s;return new J(r,o[0].rows,o[0].columns,o[0].exact)}async thumbnails(e){let{shape:n,place:s}=this.header.attentions[e].thumbnails;return{rows:n[0],columns:n[1],bytes:await this.bytes(s)}}},er=Float32Array.from({length:256},(t,e)=>(e/255)**2),J=class{constructor(e,n,s,o){Object.assign(this,{values:e,rows:n,columns:s,exact:o})}row(e){return this.values.subarray(e*this.columns,(e+1)*this.columns)}at(e,n){return this.values[e*this.columns+n]}entropy(e){let n=0;for(let s of this.row(e))s>0&&(n-=s*Math.log(s));return n}links(e,n,s){let o=this.row(e),r=T(o,s),i=0;for(let c of o)i+=c;let a=[],l=0;for(let c of r){if(!(o[c]>0)||l>=n*i-1e-9)break;l+=o[c],a.push({key:c,weight:o[c]})}return{links:a,hidden:Math.max(0,i-l)}}};function N(t){return t<5e-4?"under .001":X(t)}function X(t){return t<5e-4?"<.001":t>=.9995?"1.000":t.toFixed(3).slice(1)}function ls(t){return X(Math.floor(t*1e3+1e-9)/1e3)}function cs(t){return X(Math.floor(t*1e3+1)/1e3)}function O(t){return t>=.01||t<=0?t.toFixed(3):t.toPrecision(2)}function P(t){return t.toFixed(2).replace(/^0/,"")}function Nt(t){return t.flatMap((e,n)=>n===0?[e]:[n===t.length-1?" and ":", ",e])}function C(t,e){return u`<div class="scroll" tabindex="0" role="region" aria-label=${t}>${e}</div>`}function j(...t){return u`<thead>
<tr>
${t.map(e=>u`<th scope="col">${e}</th>`)}
</tr>
</thead>`}var nr=620;function fs(t,e){let{state:n,source:s}=t,{second:o}=s.header,r=ms(t),[i,a]=r.attention?r.attention.shape:[0,0],l=[];for(let d=0;d<i;d+=1){r.outside&&a>1&&l.push([`${d}.mean`,`layer ${d}, mean of ${a}`]);for(let h=0;h<a;h+=1)l.push([`${d}.${h}`,`layer ${d}, head ${h}`])}let c=t.compared?.key===Ve(t)&&t.compared.source===s?t.compared:null;return!c&&r.attention&&sr(t,e,r),u`
<h2>${o?"Compare":"Compare two heads"}</h2>
<div class="bar">
${pt(t)} ${ht(e)}
${o?M("With",[["other",o.said],["own","another head of the same"]],r.outside?"other":"own",d=>t.set({against:d,other:void 0})):p}
${l.length?M(o?"Its head":"With",l,`${r.layer}.${r.head}`,d=>t.set({other:d.split(".")})):p}
${c?[ht(c.second),V("difference")]:p}
</div>
${r.outside?u`<p class="hint">
The page shows: <bdi>${s.header.title}</bdi>; the other is:
<bdi>${o.header.title}</bdi>
${o.header.notes.map(d=>u`<bdi>${d}</bdi> `)}
</p>`:p}
<p class="hint">
Blue: the first head has more weight there; red: the second. Beside each row its
Jensen-Shannon distance, from 0 (equal) to 1 (no key in common).
</p>
${r.attention?c?rr(t,c):u`<p class="hint">Comparing…</p>`:u`<p class="hint">The other has no ${t.attention.name.toLowerCase()}.</p>`}
${cr(t,r)?dr(s.header,o):p}
`}function ms(t){let{header:e}=t.source,n=!!e.second&&t.state.against!=="own",s=n?e.second.header.attentions:e.attentions,o=n?s.findIndex(({name:h})=>h===t.attention.name):t.state.kind,r=s[o];if(!r)return{outside:n,attention:r,kind:o};let[i,a]=r.shape,[l,c]=t.state.other??(n?[t.state.layer,t.state.head]:[0,0]),d=(h,f)=>Math.min(Math.max(Math.trunc(Number(h))||0,0),f-1);return{outside:n,attention:r,kind:o,layer:d(l,i),head:n&&c==="mean"&&a>1?"mean":d(c,a)}}function Ve(t){let{outside:e,kind:n,layer:s,head:o}=ms(t);return[t.state.kind,t.state.layer,t.state.head,e,n,s,o].join("/")}async function sr(t,e,{outside:n,attention:s,kind:o,layer:r,head:i}){let a=Ve(t),{source:l}=t,c=n?l.second??=new B(l.header.second.header,l.arrays):l,d=await c.head(o,r,i);if(a!==Ve(t)||t.source!==l||t.state.view!=="compare")return;let{matched:h}=l.header.second??{},f=b=>Array.from({length:b},(x,v)=>v),[m,w]=[[t.attention.rows,e.rows],[t.attention.columns,e.columns]].map(([b,x])=>n?h[b]:[f(x),f(x)]),g=[ds(e,m[0],w[0]),ds(d,m[1],w[1])],$=g[0].weights.values.map((b,x)=>b-g[1].weights.values[x]),y=$.reduce((b,x)=>Math.max(b,Math.abs(x)),0),k=m[0].map((b,x)=>or(...g.map(({weights:v,rest:E})=>[...v.row(x),E[x]])));t.compared={key:a,source:l,first:g[0].weights,second:g[1].weights,values:$,largest:y,distances:k,outside:n,places:m[0],hidden:g.map(({rest:b})=>Ge(b)),left:e.rows-m[0].length,words:{rows:Ke(t.words.rows,c.words(s).rows,m),columns:Ke(t.words.columns,c.words(s).columns,w)}},t.draw()}function Ke(t,e,[n,s]){return n.map((o,r)=>t[o]===e[s[r]]?t[o]:`${t[o]} / ${e[s[r]]}`)}function ds(t,e,n){let s=new Float32Array(e.length*n.length),o=e.map((r,i)=>{let a=t.row(r),l=0;for(let c of a)l+=c;return n.forEach((c,d)=>{s[i*n.length+d]=a[c],l-=a[c]}),Math.max(l,0)});return{weights:new J(s,e.length,n.length,t.exact),rest:o}}function Ge(t){return t.length?t.reduce((e,n)=>e+n,0)/t.length:0}function or(t,e){let n=0;for(let s=0;s<t.length;s+=1){let o=(t[s]+e[s])/2;t[s]>0&&(n+=t[s]*Math.log2(t[s]/o)/2),e[s]>0&&(n+=e[s]*Math.log2(e[s]/o)/2)}return Math.sqrt(Math.max(n,0))}function rr(t,e){if(!e.first.rows||!e.first.columns)return u`<p class="hint">
The two have no words in common there, so there is nothing to compare.
</p>`;let n=us(t,e),s=e.largest.toFixed(3);return u` <p class="summary" data-distance>
Mean distance of the rows: ${Ge(e.distances).toFixed(3)}; the largest difference of a
weight is ${e.largest.toFixed(3)}.
</p>
${e.outside?u`<p class="hint" data-hidden>
Hidden: ${hs(e.hidden[0])} of the first and ${hs(e.hidden[1])} of the
second are on words without a partner in the other; they count as one more word.
${ir(e.left)}
</p>`:p}
<div class="beside">
<div>
<canvas
class="difference"
tabindex="0"
role="application"
aria-roledescription="map of differences"
aria-label="Differences; arrow keys move. ${n}"
${_(o=>hr(t,o,e))}
@click=${o=>ur(t,o,e)}
@keydown=${o=>{let r=z(o,Lt(t,e),[e.first.rows,e.first.columns]);r&&t.set({pair:r}).then(()=>t.set({said:us(t,e)}))}}
></canvas>
<p class="readout">${n}</p>
${ze([`the second has ${s} more`,`the first has ${s} more`],{place:o=>2*o-1})}
</div>
<details class="twin" open>
<summary>
The row of <bdi>${e.words.rows[Lt(t,e)[0]]}</bdi> as a table
</summary>
${lr(t,e)}
</details>
</div>`}var hs=t=>`${(100*t).toFixed(0)} %`;function ir(t){return t?`${t} ${t===1?"row of the first has":"rows of the first have"} no partner.`:""}function Lt({state:t},{first:e,values:n,places:s}){if(t.pair){let[i,a]=t.pair;return[Math.min(i,e.rows-1),Math.min(a,e.columns-1)]}let o=Math.max(s.indexOf(t.row),0),r=n.slice(o*e.columns,(o+1)*e.columns).map(Math.abs);return[o,T(r,1)[0]]}function us(t,e){let{first:n,second:s,distances:o,words:r}=e,[i,a]=Lt(t,e),[l,c]=[n,s].map(d=>O(d.at(i,a)));return`${r.rows[i]} looks at ${r.columns[a]} with ${l} in the first head and ${c} in the second; distance of the row ${o[i].toFixed(3)}.`}var ar=t=>`${t<0?"\u2212":""}${O(Math.abs(t))}`;function lr(t,e){let[n]=Lt(t,e),{first:s,second:o,words:r}=e;return C("The row as a table",u`<table>
${j("Word","First","Second","Difference")}
<tbody>
${r.columns.slice(0,100).map((i,a)=>u`<tr>
<th scope="row"><bdi>${i}</bdi></th>
<td>${O(s.at(n,a))}</td>
<td>${O(o.at(n,a))}</td>
<td>${ar(s.at(n,a)-o.at(n,a))}</td>
</tr>`)}
</tbody>
</table>`)}function cr({engine:t,source:{header:e}},{outside:n}){let{texts:s,changes:o,second:r}=e;return n&&!t&&s.target&&o&&r.header.changes}function dr(t,e){let n=(e.matched.target??[[],[]])[0].map((r,i)=>[r,e.matched.target[1][i]]),s=[t.texts.target,e.header.texts.target],o=(r,i)=>Ke(...s,[[r],[i]])[0];return u`<details class="twin" open>
<summary>The probability of each written word</summary>
${C("Probabilities of written words",u`<table data-written>
${j("Word","First","Second")}
<tbody>
${n.map(([r,i])=>u`<tr>
<th scope="row">
<bdi>${o(r,i)}</bdi>
</th>
<td>${O(t.changes.unchanged.probabilities[r])}</td>
<td>${O(e.header.changes.unchanged.probabilities[i])}</td>
</tr>`)}
</tbody>
</table>`)}
</details>`}function hr(t,e,n){let{first:s,values:o,largest:r,distances:i,words:a}=n,l=W(e),c=Math.max(e.parentElement.clientWidth-2,240),d=90,h=64,f=Math.max(Math.min((c-d-70)/s.columns,nr/s.rows,40),.1),[m,w]=[f*s.columns,f*s.rows],g=U(e,d+m+66,h+w+4);e.place={left:d,top:h,cell:f};let $=new OffscreenCanvas(s.columns,s.rows),y=new ImageData(s.columns,s.rows);o.forEach((v,E)=>{y.data.set([...Vt(r?v/r:0),255],4*E)}),$.getContext("2d").putImageData(y,0,0),g.imageSmoothingEnabled=f<1,g.drawImage($,d,h,m,w),Q(g,f<9?10:Math.min(Math.max(f*.6,8),12));let k=f<9?Math.ceil(20/f):Math.ceil(11/f);g.textAlign="left",g.fillStyle=l.ink;for(let v=0;v<s.columns;v+=k)g.save(),g.translate(d+(v+.5)*f,h-4),g.rotate(-Math.PI/4),g.fillText(et(g,a.columns[v],80),0,0),g.restore();for(let v=0;v<s.rows;v+=k)g.fillStyle=l.ink,g.textAlign="right",g.fillText(et(g,a.rows[v],d-8),d-5,h+(v+.5)*f),g.fillStyle=l.accent,g.fillRect(d+m+4,h+v*f,50*Ge(i.slice(v,v+k)),Math.max(f*k-1,1));let[b,x]=Lt(t,n);g.strokeStyle=l.accent,g.lineWidth=2,g.strokeRect(d+x*f,h+b*f,Math.max(f,4),Math.max(f,4))}function ur(t,e,{first:n}){let{left:s,top:o,cell:r}=e.currentTarget.place,[i,a]=nt(e),[l,c]=[Math.floor((a-o)/r),Math.floor((i-s)/r)];l>=0&&l<n.rows&&c>=0&&c<n.columns&&t.set({pair:[l,c]})}var se=60,oe=3,fr=1,mr=["<begin>","<s>"],$s=["<end>","</s>","<|endoftext|>"],ut=t=>/^(<[^<>]+>|\[[A-Z]+\])$/.test(t);function Wt({engine:t,source:e}){let{texts:n,changes:s}=e.header;if(n.target)return"written";if(!t)return s?{words:"next",masked:"masked",vectors:"vectors"}[s.follows]:"looks";let{follows:o,logits:r,target:i,likeliest:a}=e.answer;return o!==void 0?"next":r?i.length&&!a.length?"sorted":"masked":"vectors"}function jt(t,{logits:e,ids:n,probabilities:s}){if(t==="sorted")return s;let o=n.source.length,r=t==="next"?o-1:n.source.indexOf(fr),i=e.length/o;return r<0?null:is(e.subarray(r*i,(r+1)*i))}function ws(t,{likeliest:e,target:n,probabilities:s}){return t==="next"?e.at(-1):t==="masked"?e[0]??[]:T(s,oe).map(o=>[n[o],s[o]])}function bs(t){if(!t.attention)return null;let e=Wt(t),n={kind:e,...wr[e](t,e)},s=[n.without?"depends":null,n.looks?"looks":null].filter(Boolean);return{...n,modes:s,by:s.includes(t.state.by)?t.state.by:s[0]}}var wr={written:gr,next:Qe,sorted:Qe,masked:Qe,vectors:br,looks:pr};function Je({source:t,engine:e},n){let{model:s}=t.header;return e?`${n} of ${s.parameters.toLocaleString("en")} parameters runs here.`:""}function gr(t){let{engine:e,source:n,origin:s}=t,{texts:o,changes:r,explained:i,attentions:a}=n.header,l=Math.min(R(t),o.target.length-1),c=a.find(({rows:m,columns:w})=>m==="target"&&w==="source"),d=i[l]?.find(({lens:m})=>m==="attention"),h=m=>{let w=r?.erased[m];return w&&{p:w.probabilities[l],instead:w.likeliest[l]?.[0][0]}},f=d&&{values:d.source.map(([,m])=>m),says:"the heads"};return e&&c?f={values:ys(c,l),says:"the heads"}:!f&&t.attention===c&&(f=Xe(t,l)),{orientation:e?`${Je(t,"A translator")} Press a word of the translation to see what it depends on. Press a word of the sentence to erase it.`:"Press a word of the translation to see what it depends on. Press a word of the sentence to see what is written without it.",given:{label:"Sentence",words:(n.base??n).header.texts.source,...Ye(t)},written:{label:"Translation",words:o.target,before:s?.header.texts.target??o.target,press:m=>t.set({place:m,row:m})},chosen:l,word:o.target[l],own:(e?n.answer:r?.unchanged)?.probabilities[l],without:r&&h,waits:!!e&&!i[l],looks:f}}var gs={next:["A language model","Press a next word to see what it depends on. Press a word of the text to erase it."],sorted:["A classifier","Press a class to see what it depends on. Press a word of the text to erase it."],masked:["A model","Press a word to hide it. The model then guesses what stands there."]},$r={next:"This page holds what a language model expects after this text.",masked:"A word is hidden here, and the page holds what a model guesses. Of several it shows the first."};function Qe(t,e){let{engine:n,source:s,state:o}=t,{texts:r,changes:i}=s.header,a=n?ws(e,s.answer):ws(e,{likeliest:i.unchanged.likeliest}).slice(0,1),l=Math.min(o.pick,Math.max(a.length-1,0)),c=e==="next"?-1:0,d=f=>{if(n){let w=s.probed?.get(f);return w&&{p:w.p[l],instead:w.instead}}let m=i.erased[f];return m&&{p:m.probabilities.at(c),instead:m.likeliest.at(c)?.[0][0]}},h=r.text.length-1;return{orientation:n?`${Je(t,gs[e][0])} ${gs[e][1]}`:`${$r[e]} Press a word to see what changes without it.`,given:{label:"Text",words:(s.base??s).header.texts.text,...Ye(t)},options:a,optionsLabel:{next:"Next word",sorted:"Class",masked:"Guess"}[e],chosen:l,word:a[l]?.[0],own:a[l]?.[1],without:a.length?d:null,relative:e!=="sorted",waits:!!n&&a.length>0&&!s.probed,looks:e==="next"?ps(t,h):null}}function br(t){let{engine:e,source:n,state:s}=t,{texts:o,changes:r}=n.header,i=Math.min(s.row,o.text.length-1),a=l=>{let c=r.erased[l];return c&&l!==i?{p:c.similarities[i],instead:null}:void 0};return{orientation:e?`${Je(t,"An encoder")} Press a word to see what its vector depends on. Press it again to erase it.`:"An encoder reads this text and gives each word a vector. Press a word to see what its vector depends on.",given:{label:"Text",words:(n.base??n).header.texts.text,...Ye(t),press:l=>l===i&&e?xs(t,l):t.set({row:l}),can:()=>!0},chosen:i,arcs:!0,word:o.text[i],own:1,without:a,waits:!!e&&!Object.keys(r.erased).length,looks:ps(t,i)}}function pr(t){let{state:e,attention:n}=t,{rows:s,columns:o}=t.words,r=n.rows===n.columns,i=a=>t.set({row:a});return{orientation:"This page holds attention weights without their model. Press a word to see where it looks.",given:{label:r?"Words":"Keys",words:o,gone:[],can:()=>r,press:i},written:r?null:{label:"Queries",words:s,before:s,press:i},chosen:e.row,arcs:r,word:s[e.row],without:null,looks:Xe(t,e.row)}}function ps(t,e){let[n]=t.source.header.attentions;return t.engine?{values:ys(n,e),says:"the heads"}:Xe(t,e)}function Xe({weights:t,state:e,attention:n},s){if(!t)return null;let o=n.shape[1],r=e.head==="mean"?`the mean of ${o} heads of layer ${e.layer}`:`head ${e.layer}.${e.head}`;return{values:[...t.row(Math.min(s,t.rows-1))],says:r,one:!0}}function ys({shape:[t,e,n,s],weights:o},r){let i=new Array(s).fill(0);for(let a=0;a<t*e;a+=1)for(let l=0,c=(a*n+r)*s;l<s;l+=1)i[l]+=o[c+l]/(t*e);return i}function Ye(t){let{engine:e,source:n,state:s}=t;return e?{gone:D(s),can:o=>n.answer.erasable.includes(o),press:o=>xs(t,o)}:{gone:[],pointed:s.changed,can:o=>!!n.header.changes?.erased[o],press:o=>t.set({changed:s.changed===o?void 0:o})}}var xs=(t,e)=>H(t,{erase:q(t.state.erase,String(e),".")});function re({hot:t},{given:{pointed:e,gone:n},arcs:s,chosen:o}){let r=t??e??null;return n.includes(r)||s&&r===o?null:r}function Ze(t,e){if(e<=se)return[0,e];let n=Math.min(Math.max(t-se/2,0),e-se);return[n,n+se]}var S=t=>mr.includes(t)?"beginning":$s.includes(t)?"end":t,A=(t,e=!1)=>u`<em class=${e?"c":""}
><bdi>${$s.includes(t)?"the end":S(t)}</bdi></em
>`;function ks({by:t,given:e,own:n,without:s,relative:o,kind:r,looks:i,chosen:a,arcs:l}){if(t==="looks"){let c=i.values.map(h=>h<.03?0:h),d=Math.max(...c.filter((h,f)=>!l||f!==a),.01);return c.map((h,f)=>l&&f===a?0:.85*Math.min(h/d,1))}return e.words.map((c,d)=>{let h=e.gone.includes(d)?null:s?.(d);if(!h)return 0;let f=r==="vectors"?1-h.p:o?1-h.p/n:n-h.p;return f<.02?0:Math.min(f,1)})}function ie(t,e){let n=Array.from({length:t.length+1},()=>new Uint16Array(e.length+1)),s=[];for(let o=t.length-1;o>=0;o-=1)for(let r=e.length-1;r>=0;r-=1)n[o][r]=t[o]===e[r]?n[o+1][r+1]+1:Math.max(n[o+1][r],n[o][r+1]);for(let[o,r]=[0,0];o<t.length&&r<e.length;)t[o]===e[r]?s.push([o++,r++]):n[o+1][r]>=n[o][r+1]?o+=1:r+=1;return s}function st(t,e){let n=[],[s,o]=[0,0];for(let[r,i]of[...ie(t,e),[t.length,e.length]])(r>s||i>o)&&n.push({before:t.slice(s,r),after:e.slice(o,i),from:s,to:o}),[s,o]=[r+1,i+1];return n}function ae(t,e){return st(t.split(" "),e.split(" ")).map(n=>({before:n.before.join(" ").replace(/[.,!?]$/,""),after:n.after.join(" ").replace(/[.,!?]$/,"")}))}function ot(t,e,n){let s=ie(e,n).find(([i])=>i===t);if(s)return s[1];let o=st(e,n).find(({before:i,from:a})=>t>=a&&t<a+i.length);if(!o)return 0;let r=Math.min(t-o.from,Math.max(o.after.length-1,0));return Math.min(o.to+r,n.length-1)}function le(t){let e=t.findLastIndex(n=>new RegExp("\\p{L}","u").test(n)&&!/^(<.*>|\[[A-Z]+\])$/.test(n));return Math.max(e,0)}var yr=.98,xr=2,kr=4,vr=2,Ar=2,As=40,Mr=160;function ft(t){let{tried:e,origin:n}=t;return e?.origin===n&&(L(t)||e.asked===It(t))?e.list:null}function It(t){let e=Wt(t);return e==="vectors"?t.state.row:e==="written"?L(t)?t.origin.header.chosen:R(t):L(t)?0:t.state.pick}async function tn(t,e,n,s){let o=jt(n,e.answer),r=new Map;if(o){let i=T(o,oe),a=D(e.given.erase?{erase:e.given.erase.join(".")}:{});for(let l of e.answer.erasable.slice(-As)){if(a.includes(l))continue;let c=await t.engine.ask("run",{...e.given,erase:[...a,l]});if(s())return;let d=jt(n,c);r.set(l,{p:i.map(h=>d[h]),instead:Ms(n,c)})}}e.probed=r}function Ms(t,{likeliest:e,target:n,probabilities:s}){return t==="sorted"?n[T(s,1)[0]]:(t==="next"?e.at(-1):e[0])[0][0]}async function Ss(t,e,n){let{origin:s}=t;if(e==="vectors")return Fr(t,s);let o=e==="written"?null:jt(e,s.answer);if(e==="masked"&&!o)return Pr(t,s,n);let r=e==="written"?await Sr(t,s):await Or(t,s,e,o,n);if(!r||n())return[];let i=r.falls.sort(([,d],[,h])=>d-h),a=await Er(t,s,r,i.slice(0,vr),n),l=n()?null:await jr(t,s,r,n),c=i.slice(0,a?1:2).map(([d,h])=>Wr(t,s,r,d,h));return[a,...c,l].filter(Boolean)}async function Sr(t,e){let n=Math.min(It(t),e.answer.texts.target.length-1),{given:s,header:o}=e;if(!o.explained[n]){let i=await t.engine.ask("lens",{...s,place:n,others:e.others(n)});if(!i)return null;e.explain(n,i),o.explained[n]??=[]}let r=e.answer.texts.target;return{word:r[n],own:e.answer.probabilities[n],falls:Object.entries(o.changes.erased).map(([i,{probabilities:a}])=>[Number(i),a[n]]),ask:{against:e.answer.ids.target},p:({against:i})=>i.probabilities[n],now:({texts:i})=>i.target[ot(n,r,i.target)],cost:i=>_r(r,i),whole:!0}}function _r(t,{texts:{target:e},probabilities:n}){let s=st(t,e);return e.length!==t.length||s.length>Ar||Math.min(...n)<yr||!s.every(({before:r,after:i})=>i.every((a,l)=>ce(a)===ce(r[l]??"")))?1/0:s.reduce((r,{after:i})=>r+i.length,0)}function Tr(t,e){let n=t.findIndex((s,o)=>s!==e[o]);return n>=0&&t[n]<e[n]}async function Or(t,e,n,s,o){if(e.probed||await tn(t,e,n,o),!e.probed)return null;let r=It(t),i=T(s,oe)[r],{likeliest:a,target:l}=e.answer,c=n==="next"?a.at(-1):a[0];return{word:n==="sorted"?l[i]:c[r][0],own:s[i],falls:[...e.probed].map(([d,{p:h}])=>[d,h[r]]),ask:{},p:d=>jt(n,d)[i],now:d=>Ms(n,d),cost:()=>0}}async function Er(t,e,n,s,o){if(!t.engine.words.length)return null;let r=null,{texts:i}=e.answer,a=i.source??i.text;for(let[l]of s){let c=a[l];if(new RegExp("^\\p{L}+$","u").test(c))for(let d of await Cr(t,n.whole?a:[c],n.whole?l:0)){let h=Lr(e,l,d);if(o())return null;if(!h||!Nr(d,c))continue;let f=await t.engine.ask("run",{...e.given,source:h,...n.ask}),m=n.p(f),w=n.cost(f),g=n.now(f),$={p:m,text:h,word:c,other:d,now:g,rank:[g===n.word?1:0,w,m]};if(w<1/0&&(!r||Tr($.rank,r.rank))&&(r=$),n.whole&&r&&r.now!==n.word&&r.rank[1]<=xr)return vs(t,e,n,r)}}return r&&vs(t,e,n,r)}async function Cr(t,e,n){let s=e.map((r,i)=>[r,Math.abs(i-n)]).filter(([r])=>new RegExp("^\\p{L}+$","u").test(r)&&r.length>=kr).sort(([,r],[,i])=>r-i),o=new Set;for(let[r]of s)for(let i of await t.engine.ask("near",{word:r}))o.add(i);return o}function vs(t,e,n,{text:s,word:o,other:r,now:i,p:a}){return{title:`\u201C${o}\u201D \u2192 \u201C${r}\u201D`,says:nn(n,i,a),on:l=>l.text===s,press:()=>H(t,{text:t.state.text===s?e.given.source:s})}}function Nr(t,e){return t.toLowerCase()!==e.toLowerCase()&&ce(t)===ce(e)}var ce=t=>t.charAt(0)!==t.charAt(0).toLowerCase();function Lr({given:t,answer:{texts:e}},n,s){let{source:o}=t,r=(e.source??e.text).slice(0,n+1),i=0;for(let a of r.filter(l=>!ut(l))){let l=o.indexOf(a,i);if(l<0)return null;i=l+a.length}return o.slice(0,i-r.at(-1).length)+s+o.slice(i)}function Wr(t,e,n,s,o){let{texts:r}=e.answer;return{title:`Erase \u201C${S((r.source??r.text)[s])}\u201D`,says:nn(n,n.word,o),...en(t,s)}}var en=(t,e)=>({on:n=>D(n).includes(e),press:()=>H(t,{erase:q(t.state.erase,String(e),".")})});async function jr(t,e,n,s){let o=e.header.attentions.flatMap(({kind:c,shape:[d,h]})=>Array.from({length:d*h},(f,m)=>[c,Math.floor(m/h),m%h]));if(o.length>Mr)return null;let r=null;for(let c of o){let d=await t.engine.ask("run",{...e.given,off:[c],...n.ask});if(s())return null;let h=n.p(d);(!r||h<r.p)&&(r={p:h,head:c,now:n.now(d)})}let i=r.head.join("."),[a,...l]=r.head;return{title:`Switch off head ${l.join(".")}`,says:`${a==="text"?"":`${Ir[a]}: `}${nn(n,r.now,r.p)}`,on:({off:c})=>c.split(",").includes(i),press:()=>H(t,{off:q(t.state.off,i,",")})}}var Ir={cross:"cross-attention",encoder:"in the encoder",decoder:"in the decoder"};function nn({word:t,own:e},n,s){if(n!==t)return`\u201C${S(t)}\u201D becomes \u201C${S(n)}\u201D`;let[o,r]=[e,s].map(N),i=s<e?"falls to":"rises to";return`\u201C${S(t)}\u201D ${o===r?"stays at":i} ${r}`}async function Pr(t,e,n){let s=[];for(let o of e.answer.erasable.slice(-As)){let r=e.answer.texts.text[o];if(!new RegExp("\\p{L}","u").test(r))continue;let{likeliest:i}=await t.engine.ask("run",{...e.given,erase:[o]});if(n())return[];s.push({at:o,word:r,guess:i[0][0]})}return s.sort((o,r)=>r.guess[1]-o.guess[1]).slice(0,3).map(({at:o,word:r,guess:[i,a]})=>({title:`Hide \u201C${r}\u201D`,says:`the model guesses \u201C${i}\u201D, ${N(a)}`,...en(t,o)}))}function Fr(t,e){let{header:n}=e,s=Math.min(t.state.row,n.texts.text.length-1),o=n.texts.text[s];return[...Object.entries(n.changes.erased).map(([a,{similarities:l}])=>[Number(a),l[s]]).filter(([a])=>a!==s).sort(([,a],[,l])=>a-l).slice(0,2).map(([a,l])=>({title:`Erase \u201C${S(n.texts.text[a])}\u201D`,says:`the vector of \u201C${S(o)}\u201D changes: cosine ${P(l)}`,...en(t,a)})),Rr(t,n,s)]}function Rr(t,{attentions:[{shape:e,weights:n}],texts:{text:s}},o){let[r,i,a,l]=e,c={weight:-1};for(let f=0;f<r*i;f+=1)for(let m=0;m<l;m+=1){let w=n[(f*a+o)*l+m];w>c.weight&&m!==o&&!ut(s[m])&&(c={weight:w,head:f,at:m})}let[d,h]=[Math.floor(c.head/i),c.head%i];return{title:`Open head ${d}.${h}`,says:`there \u201C${S(s[o])}\u201D looks most at \u201C${s[c.at]}\u201D`,on:({view:f,layer:m,head:w})=>f==="map"&&m===d&&w===h,press:()=>t.set({view:"map",layer:d,head:h})}}var _s=48,rt=class extends B{constructor(e,n,s,o=null){let{header:r,arrays:i}=e,{model:a}=r,l=a.kinds.map(m=>new sn(m,s.attention[m.kind])),{texts:c,text:d,finished:h}=s,f=c.target?`${n.source} \u2192 ${d}`:n.source;super({...r,title:f,texts:c,attentions:l,explained:{},written:a.written,changes:a.follows&&Br(a,s,o?.answer??s)},i),Object.assign(this,{stored:e,given:n,answer:s,base:o}),this.header.chosen=this.#t(),o&&(Object.assign(this,{second:o}).header.second={said:"the model as trained",header:o.header,matched:Hr(c,o.answer.texts)}),h===!1&&(this.header.notes=[...r.notes,"The model does not end this text."])}#t(){let{model:e,texts:n}=this.header;if(e.written!=="target")return le(n.text);if(e.asked?.source===this.given.source&&n.target[e.asked.place]===e.asked.word)return e.asked.place;let s=n.target.flatMap((o,r)=>e.pronouns.includes(o.toLowerCase())?[r]:[]);return s.length===1?s[0]:this.#e()}#e(){let{probabilities:e}=this.answer,n=Math.max(e.length-1,1);return e.slice(0,n).reduce((s,o,r,i)=>o<i[s]?r:s,0)}others(e){let{model:n,texts:s}=this.header,{asked:o}=n;return o?.place===e&&o.word===s.target?.[e]&&o.source===this.given.source?o.others:null}explain(e,{lenses:n,changes:s}){let{header:o,answer:r}=this;n.length&&(o.explained[e]=n),o.changes&&s.forEach((i,a)=>o.changes.erased[r.erasable[a]]={...Ts,...i})}measure(e,{kinds:n,...s}){this.effects={place:e,...s};for(let o of this.header.attentions){let{heads:r,layers:i}=n[o.kind]??{};o.layers=i,r?o.statistics.effect=r:delete o.statistics.effect}}head(e,n,s){let{shape:[,o,r,i],weights:a}=this.header.attentions[e],l=r*i,c=new Float32Array(l);for(let d=s==="mean"?0:s,h=s==="mean"?o:s+1;d<h;d+=1)for(let f=0,m=(n*o+d)*l;f<l;f+=1)c[f]+=a[m+f]/(s==="mean"?o:1);return new J(c,r,i,!0)}async thumbnails(e){let{shape:[n,s,o,r],weights:i}=this.header.attentions[e],[a,l]=[Math.min(o,_s),Math.min(r,_s)],c=new Uint8Array(n*s*a*l);for(let d=0;d<i.length;d+=1){let h=d%r,f=Math.floor(d/r)%o,w=(Math.floor(d/r/o)*a+Math.floor(f*a/o))*l+Math.floor(h*l/r);c[w]=Math.max(c[w],Math.round(255*Math.sqrt(i[d])))}return await new Promise(requestAnimationFrame),{rows:a,columns:l,bytes:c}}};function Hr(t,e){return Object.fromEntries(Object.entries(t).map(([n,s])=>{let o=ie(s,e[n]);return[n,[0,1].map(r=>o.map(i=>i[r]))]}))}var Ts={probabilities:[],likeliest:[],translation:null,similarities:[]};function Br({follows:t},e,n){let s=r=>({...Ts,...r,translation:r.finished===void 0?[]:r.texts.target.slice(0,-1)}),o={similarities:n.texts[n.texts.target?"target":"text"].map(()=>1)};return{follows:t,unchanged:{...s(n),...o},now:e===n?null:{...s(e),...e.against},erased:{}}}var sn=class{constructor(e,{shape:n,weights:s}){Object.assign(this,{links:{},says:"",...e,shape:n,weights:s})}get sums(){let[,,,e]=this.shape,{weights:n}=this;for(let s=0;s<n.length;s+=e)if(Math.abs(n.subarray(s,s+e).reduce((o,r)=>o+r,0)-1)>.01)return"Rows of words that may look at no word sum to 0.";return""}get statistics(){return this.measured??=this.#t()}#t(){let[e,n,s,o]=this.shape,r=[this.rows,this.columns].sort().join(),i=this.rows===this.columns||r==="read,target",a={entropy:[],first:[],received:[],...i?{distance:[]}:{}};for(let l=0;l<e;l+=1){for(let c of Object.values(a))c.push([]);for(let c=0;c<n;c+=1){let d=new Float64Array(o),[h,f,m]=[0,0,0];for(let w=0;w<s;w+=1)for(let g=0;g<o;g+=1){let $=this.weights[((l*n+c)*s+w)*o+g];$>0&&(h-=$*Math.log($)/s),g===0&&(f+=$/s),m+=$*Math.abs(w-g)/s,d[g]+=$/s}for(let[w,g]of Object.entries({entropy:h,first:f,distance:m,received:Math.max(...d)}))a[w]?.[l].push(g)}}return a}};var Dr={lenses:[],changes:[]};async function yt(t){let{source:e}=t,{header:n}=e,s=R(t);if(!(e instanceof rt)||t.asking)return;if(n.explained[s])return Os(t);let o=t.began??performance.now();t.asking=e;let r=Dr;try{r=await t.engine.ask("lens",{...e.given,place:s,others:e.others(s)})}catch(i){t.state.busy=i.message}if(t.asking=null,!t.playing)return t.source!==e||!r?yt(t):(e.explain(s,r),n.explained[s]??=[],t.began=null,await t.draw(),window.regard.coloured.push(performance.now()-o),Os(t))}async function Os(t){let{source:e,origin:n}=t,s=Wt(t),o=Es(t),r=It(t),i=ft(t)!==null,a=s!=="written"&&s!=="vectors"&&!e.probed;if(t.asking||t.playing||i&&!a)return;t.asking=e;let l=()=>t.source!==e||t.playing||Es(t)!==o;try{if(a&&(await tn(t,e,s,l),l()||await t.draw()),!l()&&!i){let d=await Ss(t,s,l);l()||(t.tried={origin:n,asked:r,list:d})}}catch(d){t.state.busy=d.message,i||(t.tried={origin:n,asked:r,list:[]})}let c=l();t.asking=null,!t.playing&&(await t.draw(),c&&await yt(t))}var Es=({state:t,source:e})=>[e.given.source,t.place??e.header.chosen,t.pick,t.row].join("/");async function Cs(t){let{source:e}=t,n=R(t);if(!(e instanceof rt)||e.effects?.place===n||(e.effects&&e.measure(null,{kinds:{}}),t.asking||t.playing))return;t.asking=e;let s={kinds:{}};try{s=await t.engine.ask("effects",{...e.given,place:n,others:e.others(n)})}catch(o){t.state.busy=o.message}t.asking=null,s&&e.measure(n,s),t.source===e&&!t.playing&&await t.draw()}var qr=2,Ur={written:"write",next:"continue with",sorted:"answer",masked:"guess"};function Ns(t,e,n){let{by:s,word:o}=e;if(o===void 0)return"Press a word to hide it. The model then guesses what stands there.";let r=re(t,e),i=r===null?zr(n):[r];return s==="looks"?Qr(e,i,r!==null):s?e.waits&&!i.length?u`What does ${A(o,!0)} depend on? Each word is erased in turn…`:e.kind==="vectors"?Gr(e,i):Vr(e,i,n):u`This page holds no attention weights of ${A(o,!0)}.`}function zr(t){return t.map((e,n)=>[e,n]).filter(([e])=>e>0).sort(([e],[n])=>n-e).slice(0,qr).map(([,e])=>e)}function Vr({kind:t,given:e,word:n,own:s,without:o},[r,i],a){let l=Ur[t],c=w=>A(e.words[w]),d=A(n,!0);if(r===void 0)return Kr({given:e,own:s,without:o,chosen:d,kind:t});let h=o(r);if(!h)return u`This page does not hold what the model does without ${c(r)}.`;if(!(a[r]>0))return u`Without ${c(r)}, the model would still ${l} ${d}, with probability
${N(h.p)}.`;let f=i===void 0?p:u` <small
>Without ${c(i)} it falls to ${N(o(i).p)}.</small
>`,m=u`falls from ${N(s)} to ${N(h.p)}.${f}`;return h.instead===n||h.instead===void 0?u`Without ${c(r)}, the model would be less sure of ${d}: its probability
${m}`:u`Without ${c(r)}, the model would ${l} ${A(h.instead)}: the probability of
${d} ${m}`}function Kr({given:t,own:e,without:n,chosen:s,kind:o}){let r=t.words.map((d,h)=>n(h)?.p).filter(d=>d!==void 0);if(!r.length)return u`There is no word that could be erased.`;let i=Math.min(e,...r),a=i<.001?`below ${cs(e)}`:`above ${ls(i)}`,l=i>=.9995?"at 1.000":a;return u`No single word of ${o==="written"?"the sentence":"the text"} decides ${s}: erase any one of them and its
probability stays ${l}.`}function Gr({given:t,word:e,without:n,waits:s},[o,r]){let i=A(e,!0),a=c=>P(n(c).p);if(o===void 0||!n(o))return s?u`What does ${i} depend on?`:u`No other word alone changes the vector of ${i} much.`;let l=r===void 0?p:u` <small>Without ${A(t.words[r])} it is ${a(r)}.</small>`;return u`Without ${A(t.words[o])}, the vector of ${i} changes: its cosine with
the vector before is ${a(o)}.${l}`}function Qr({kind:t,given:e,word:n,looks:s},[o,r],i){let a=A(n,!0),l={written:u`While it writes ${a}, ${s.says}`,next:u`Before the next word, ${s.says}`}[t]??u`From ${a}, ${s.says}`,c=s.one?"looks":"look",d=m=>u`${A(e.words[m])} (${P(s.values[m])})`;if(o===void 0)return u`${l} ${c} at no word in particular.`;let h=r===void 0?p:u`, then at ${d(r)}`,f=t==="looks"?"It says where a word looks, not what it uses.":"To look at a word is not yet to use it.";return u`${l} ${c} ${i?"":"most "}at ${d(o)}${h}.
<small>${f}</small>`}var Jr=.02,Xr=2e6;function de(t,e){return e.kind==="written"?Yr(t,e):Zr(t,e)}function Yr(t,{given:e,without:n,word:s,own:o}){return n?e.words.map((r,i)=>({one:r,at:i,p:n(i)?.p})).filter(({p:r})=>r<o-Jr).sort((r,i)=>r.p-i.p).slice(0,3).map(({one:r,at:i,p:a})=>({title:`Without \u201C${S(r)}\u201D`,says:`\u201C${S(s)}\u201D falls to ${N(a)}`,on:({changed:l})=>l===i,press:()=>e.press(i)})):[]}function Zr(t,{chosen:e,word:n}){let{attention:s,state:o,words:r}=t,[i,a,l,c]=s.shape;if(i*a*l*c>Xr)return[];let d=[o.kind,e].join("/");if(t.strongest?.key!==d||t.strongest.source!==t.source)return ti(t,d,e),null;let{layer:h,head:f,at:m,weight:w}=t.strongest,g=r.columns[m],$=a>1&&{title:`Mean of ${a} heads`,says:`of layer ${o.layer}: a mean hides what single heads do`,on:b=>b.head==="mean",press:()=>t.set({head:"mean"})},y=s.rows===s.columns&&{title:`Ask \u201C${S(g)}\u201D`,says:"where does it look itself?",on:({row:b})=>b===m,press:()=>t.set({row:m})};return[{title:`Show head ${h}.${f}`,says:`there \u201C${S(n)}\u201D looks most at \u201C${S(g)}\u201D (${P(w)})`,on:b=>Number(b.layer)===h&&b.head===f,press:()=>t.set({layer:h,head:f})},y,$].filter(Boolean)}async function ti(t,e,n){let{source:s,state:o,attention:r,words:i}=t;if(t.searched===e&&t.searching===s)return;Object.assign(t,{searched:e,searching:s});let[a,l]=r.shape,c=r.rows===r.columns,d={weight:-1};for(let h=0;h<a;h+=1)for(let f=0;f<l;f+=1)(await s.head(o.kind,h,f)).row(n).forEach((w,g)=>{!(c&&g===n)&&!ut(i.columns[g])&&w>d.weight&&(d={weight:w,layer:h,head:f,at:g})});t.source===s&&(t.strongest={...d,key:e,source:s},t.drawFirst())}function Ws(t,e){if(!t.engine)return oi(t,e);if(!L(t))return ni(t,e);let n=ri(t),s=ii(t,e);return u`${n.length>1?u`Together, ${Nt(n.map(js))}`:n.map(ei)}:
${s.length?Nt(s):u`nothing changes`}.`}var js=([t,e])=>u`${t} ${e}`,ei=([t,e])=>js([t.charAt(0).toUpperCase()+t.slice(1),e]);function ni(t,{kind:e,word:n}){let s=ft(t);return s?s.length?e==="masked"&&n===void 0?u`Hide one word. These are the ones that the model guesses most surely:`:u`Experiments on ${A(n,!0)}, found by trying words and heads of this model:`:u`No experiment was found for this text.`:u`Looking for three experiments on this model…`}function si({word:t},e){return e?e.length?u`All heads were searched for the one in which ${A(t,!0)} looks most at
another word:`:"":u`All heads are searched…`}function oi(t,e){let{pointed:n,words:s}=e.given,o=t.source.header.changes?.erased[n],r=de(t,e);return e.kind!=="written"?si(e,r):o?.translation?.length?u`Without ${A(s[n])} the model writes:
<em><bdi>${o.translation.join(" ")}</bdi></em>`:r.length?"What is written without the words that matter most:":"No word of the sentence matters much for this one."}function ri({state:t,origin:e}){let{texts:n}=e.header,s=n.source??n.text,o=[];if(t.text!==e.given.source)for(let{before:l,after:c}of ae(e.given.source,t.text))o.push(["with",u`${A(c)} instead of ${A(l)}`]);let r=D(t).map(l=>A(s[l]??String(l)));r.length&&o.push(["without",Nt(r)]);let i=t.off?t.off.split(","):[],a=i.map(l=>l.split(".").slice(1).join("."));return i.length&&o.push(["with",u`${i.length>1?"heads":"head"} ${Nt(a)} switched off`]),Number(t.factor)!==1&&o.push(["with",`attention scores \xD7 ${t.factor}`]),Number(t.warmth)!==1&&o.push(["at",`temperature ${t.warmth}`]),t.masks&&o.push(["with","another pattern"]),o}function ii(t,{kind:e,chosen:n,word:s,own:o,options:r}){let{origin:i,source:a}=t;if(e==="written"){let[h,f]=[i.header.texts.target,a.header.texts.target],m=st(h,f).map(ci);if(m.length)return m;let w=i.answer.probabilities[ot(n,f,h)];return[u`the same is written, and ${Ls(s,o,w)}`]}if(e==="vectors")return ai(a.header.changes,n,s);if(!r.length)return[];let[[l,c]]=r,d=li(e,i.answer);return d?l===d[0]?[Ls(l,c,d[1])]:[u`${A(d[0])} becomes ${A(l,!0)}, with probability ${N(c)}`]:[u`the model guesses ${A(l,!0)} with probability ${N(c)}`]}function ai({now:t},e,n){if(!t)return[u`its vectors are not compared with those of the text before`];let s=P(t.similarities[e]);return[u`the cosine of the vector of ${A(n,!0)} with the one before is ${s}`]}function Ls(t,e,n){let[s,o]=[e,n].map(N);return s===o?u`${A(t,!0)} keeps probability ${s}`:u`${A(t,!0)} has probability ${s} instead of ${o}`}function li(t,{likeliest:e,target:n,probabilities:s}){if(t==="next")return e.at(-1)[0];if(t==="masked")return e[0]?.[0];let o=s.indexOf(Math.max(...s));return[n[o],s[o]]}function ci({before:t,after:e}){return e.length?t.length?u`${A(t.join(" "))} becomes ${A(e.join(" "))}`:u`${A(e.join(" "))} is added`:u`${A(t.join(" "))} is gone`}function Is(t){return u`<div class="pills" role="toolbar" aria-label="What is changed; press one to undo it">
${di(t).map(([e,n])=>u`<button @click=${()=>H(t,n)}>${e}</button>`)}
</div>`}function di({state:t,origin:e}){let{texts:n}=e.header,s=n.source??n.text,{source:o}=e.given,r=ae(o,t.text).map(({before:l,after:c})=>`\u201C${l}\u201D \u2192 \u201C${c}\u201D`).join(", "),i=D(t).map(l=>[`without \u201C${S(s[l]??String(l))}\u201D`,{erase:q(t.erase,String(l),".")}]),a=Fe(t).map(([l,c,d])=>[`head ${c}.${d} off`,{off:q(t.off,[l,c,d].join("."),",")}]);return[...r?[[r,{text:o}]]:[],...i,...a,...Number(t.factor)===1?[]:[[`scores \xD7 ${t.factor}`,{factor:"1"}]],...Number(t.warmth)===1?[]:[[`temperature ${t.warmth}`,{warmth:"1"}]],...t.masks?[["another pattern",{masks:""}]]:[]]}var on="[role=toolbar], [role=radiogroup], [role=tablist]",he=t=>[...t.querySelectorAll("button, summary")].filter(e=>!e.closest("[data-apart]"));function Ps(t){for(let e of t.querySelectorAll(on)){let n=he(e),s=n.find(o=>o===e.last)??n.find(o=>o.matches("[aria-checked=true], [aria-selected=true], .chosen"))??n[0];for(let o of n)o.tabIndex=o===s?0:-1}}var hi=(t,e,n)=>({ArrowRight:(e+1)%n,ArrowLeft:(e-1+n)%n,Home:0,End:n-1})[t];function ue(t){let e=t.target.closest(on);if(!e||!t.target.matches("button, summary"))return;let n=he(e),s={ArrowDown:"written",ArrowUp:"given"}[t.key],o=s&&e.dataset.line&&e.parentElement.querySelector(`[data-line=${s}]`),r=o&&o!==e?he(o).find(a=>a.tabIndex===0):n[hi(t.key,n.indexOf(t.target),n.length)];if(!r)return;t.preventDefault();let i=r.closest(on);i.last=r;for(let a of he(i))a.tabIndex=a===r?0:-1;r.focus(),i.matches("[role=radiogroup], [role=tablist]")&&r.click()}var Fs="Reading\u2026";function Rs(t){let{live:e}=t.source.header;return u`<form class="live" @submit=${n=>ui(t,n)}>
<label for="sentence">${e.label}</label>
<input id="sentence" name="text" .value=${e.text} maxlength="4000" autocomplete="off" />
<button ?disabled=${t.state.busy===Fs}>Read this text</button>
</form>`}async function rn(t,e){let n=await fetch(t,{method:"POST",headers:{"Content-Type":"application/json"},body:JSON.stringify({text:e})}).catch(()=>{throw new Error("The server has ended; start it again.")}),s=await n.json();if(!n.ok)throw new Error(s.error);return s}async function ui(t,e){e.preventDefault();let n=new FormData(e.target).get("text");if(!n.trim()){t.set({busy:"The sentence is empty; write one."});return}t.set({busy:Fs});try{let s=await rn("read",n);t.state.busy="",await t.replace(new B(s.header,s.arrays))}catch(s){t.set({busy:s.message})}}var fi="http://www.w3.org/2000/svg";function Hs(t,e,n){let s=`${e}/${t.clientWidth}`,o=[...t.querySelectorAll(".line")],r=()=>Math.max(...o.map(f=>f.scrollWidth)),i=()=>o.some(f=>f.scrollWidth>f.clientWidth+1);if(t.fitted===s&&!i())return;t.fitted=s,t.classList.remove("wrapped");for(let f of o)f.style.minHeight="";t.style.setProperty("--s","40px");let a=parseFloat(getComputedStyle(t).fontSize),l=o.length>1?.88:.97,c=Math.min(1.85*a,40*t.clientWidth*l/r());t.style.setProperty("--s",`${c}px`);let d=c<18||i();t.classList.toggle("wrapped",d),t.classList.toggle("arcs",n),d&&t.style.setProperty("--s",`${1.3*a}px`),mi(t,d);let h=t.querySelector(".line.written");d&&h&&(h.style.minHeight=`${h.offsetHeight}px`)}function mi(t,e){let n=t.querySelector(".options.follows");if(!n)return;n.style.marginLeft="";let s=[...t.querySelectorAll(".given .w")].at(-1),o=s.offsetLeft+s.offsetWidth,r=t.clientWidth-n.scrollWidth;e||(n.style.marginLeft=`${Math.max(Math.min(o,r),0)}px`)}function Bs(t,{strengths:e,ghosts:n,pointed:s,arcs:o}){let r=t.querySelector("svg"),i=t.getBoundingClientRect(),a=h=>{let{left:f,width:m,top:w,bottom:g}=h.querySelector(".t").getBoundingClientRect();return{x:f+m/2-i.left,top:w-i.top,bottom:g-i.top}},l=t.querySelector(o?".given .chosen":".written .chosen, .options .chosen"),c=[...t.querySelectorAll(".given .w")],d=[];if(l)for(let h of c){let f=Number(h.dataset.at),m=e[f]??0,w=n.includes(f);if(h===l||!m&&!w)continue;let g=document.createElementNS(fi,"path");g.setAttribute("d",(o?gi:wi)(a(l),a(h))),w&&!m?g.setAttribute("class","ghost"):(g.style.strokeWidth=1+7*m,g.style.opacity=(.3+.6*m)*(s===null||s===f?1:.35)),d.push(g)}r.replaceChildren(...d)}function wi(t,e){let n=Math.max((t.top-e.bottom)*.55,24);return`M${t.x} ${t.top}C${t.x} ${t.top-n} ${e.x} ${e.bottom+n} ${e.x} ${e.bottom}`}function gi(t,e){if(t.top>e.bottom||e.top>t.bottom){let[o,r]=t.top<e.top?[t,e]:[e,t],i=(o.bottom+r.top)/2;return`M${o.x} ${o.bottom}C${o.x} ${i} ${r.x} ${i} ${r.x} ${r.top}`}let s=Math.min(Math.max(26,Math.abs(t.x-e.x)*.24),110);return`M${t.x} ${t.top}C${t.x} ${t.top-s} ${e.x} ${e.top-s} ${e.x} ${e.top}`}var $i={depends:"Depends on",looks:"Looks at"};function Us(t){let e=bs(t);if(!e)return u`<h1><bdi>${t.source.header.title}</bdi></h1>`;(e.waits||t.engine&&!ft(t))&&queueMicrotask(()=>yt(t));let n=ks(e),{busy:s,types:o}=t.state,r=t.source.answer?.unknown??[];return u`<div class="screen" data-by=${e.by} @keydown=${i=>Fi(t,i)}>
<div class="top" ${_(i=>yi(t,i))}>
${t.engine&&o?ts(t):xi(t,e)}
<span role="alert">${s}</span>
${r.length?ki(r):p}
</div>
<h1 class="answer" ${_(i=>pi(t,i))}>
${Ns(t,e,n)}
</h1>
${vi(t,e,n)} ${ji(t,e)?bi(t,e):p}
</div>`}function bi(t,e){let n=!!t.engine&&L(t);return u`<div class="told">
<p><span aria-live="polite" class="outcome">${Ws(t,e)}</span></p>
<button class="undo ${n?"on":""}" ?disabled=${!n} @click=${()=>Be(t)}>
Undo
</button>
</div>
${Pi(t,e)}`}function pi(t,e){e.style.height=t.hot===null?"":`${t.answerHeight}px`,t.hot===null&&(t.answerHeight=e.offsetHeight)}function yi(t,e){let n=!!t.engine&&L(t);e.style.minHeight=n&&t.topHeight?`${t.topHeight}px`:"",n||(t.topHeight=e.offsetHeight)}function xi(t,{orientation:e,kind:n}){if(t.engine&&L(t))return Is(t);let{live:s,title:o}=t.source.header,r=!t.engine&&n!=="written";return u`${r?u`<p class="title"><bdi>${o}</bdi></p>`:p}
<p class="orientation">${e}</p>
${s&&!t.engine?Rs(t):p}`}function ki(t){return u`<p class="unknown">
Not in the training of this model: <bdi>${t.join(", ")}</bdi>; what it makes of such words
is a guess.
</p>`}function vi(t,e,n){let{given:s,written:o,options:r,arcs:i}=e,a=[t.origin?.header.title??t.source.header.title,e.kind].join("/"),l=Ei(t,e,n);return u`<section
class="stage"
aria-label="The words, and links between them"
${_(c=>{Hs(c,a,!!i);let d={strengths:n,ghosts:l,pointed:re(t,e),arcs:i};Bs(c,d)})}
>
<svg aria-hidden="true"></svg>
<div class="cap">
<p class="note"><strong>${s.label}</strong> ${Ti(e,n,l)}</p>
${e.modes.length>1?Ai(t,e):p}
</div>
${i?u`<div class="gap"></div>`:p} ${Mi(t,e,n)}
${i||r?.length===0?p:u`<div class="gap"></div>`}
${o?Si(t,e):p} ${r?_i(t,e):p}
<div class="cap below">
<p class="note">${Oi(e)}</p>
${Ci(t)}
</div>
</section>`}function Ai(t,{by:e}){return u`<div class="switch" role="radiogroup" aria-label="Links show what the word">
${Object.entries($i).map(([n,s])=>u`<button
role="radio"
data-mode=${n}
aria-checked=${String(n===e)}
@click=${()=>t.set({by:n})}
>
${s}
</button>`)}
</div>`}function Mi(t,e,n){let{given:s,chosen:o,arcs:r,by:i,looks:a}=e,[l,c]=Ze(r?o:s.words.length,s.words.length),d=e.kind==="written"?"source":t.attention.columns,h=w=>{if(!(n[w]>0))return"";if(i==="looks")return P(a.values[w]);let{p:g}=e.without(w);return e.kind==="vectors"?P(g):X(g)},f=w=>s.gone.includes(w)||s.pointed===w||!!r&&w===o,m=(w,g)=>{let $=i==="looks"?"looked at with":"without it",y=s.gone.includes(g)?", erased":"";return`${S(w)}${y}${h(g)?`, ${$} ${h(g)}`:""}`};return u`<div
class="line given"
data-line="given"
role="toolbar"
aria-label="Words that are read${t.engine&&!r?"; press one to erase it":""}"
@pointerover=${w=>w.pointerType==="mouse"&&Ds(t,w,d,s)}
@pointerleave=${()=>qs(t)}
@focusin=${w=>w.target.matches(":focus-visible")&&Ds(t,w,d,s)}
@focusout=${()=>qs(t)}
>
${Ks(s.words,[l,c],(w,g)=>u`<button
class="w ${Vs(w)} ${ln({gone:s.gone.includes(g),chosen:r&&g===o,hot:s.pointed===g,still:!s.can(g)})}"
data-at=${g}
aria-label=${m(w,g)}
aria-pressed=${s.can(g)?String(f(g)):p}
aria-disabled=${s.can(g)?p:"true"}
.style="--k:${(n[g]??0).toFixed(3)}"
@click=${()=>s.can(g)&&s.press(g)}
>
<span class="n">${h(g)}</span><span class="t"><bdi>${S(w)}</bdi></span>
</button>`)}
</div>`}function Si(t,{kind:e,written:n,chosen:s}){let o=[];for(let{before:i,after:a,to:l}of st(n.before,n.words)){let c=i.length===a.length,d=Math.max(a.length,1);for(let h=0;h<d;h+=1)o[l+h]=c?i[h]:h===0?i.join(" "):""}let r=e==="written"?"target":t.attention.rows;return u`<div
class="line written"
data-line="written"
role="toolbar"
aria-label="Words that are written; press one to explain it"
@pointerover=${i=>i.pointerType==="mouse"&&fe(t,i,r)}
@pointerleave=${()=>fe(t,null)}
>
${Ks(n.words,Ze(s,n.words.length),(i,a)=>u`<button
class="w ${Vs(i)} ${ln({chosen:a===s})}"
data-at=${a}
aria-pressed=${String(a===s)}
@click=${()=>n.press(a)}
>
<span class="t"><bdi>${S(i)}</bdi></span>
${o[a]?u`<span class="was"><bdi>${o[a]}</bdi></span>`:p}
</button>`)}
</div>`}function _i(t,{kind:e,options:n,chosen:s,optionsLabel:o}){let r=Math.max(...n.map(([,i])=>i));return u`<div
class="options ${e==="next"?"follows":""}"
data-line="written"
role="toolbar"
aria-label=${o}
>
${n.map(([i,a],l)=>u`<button
class="w ${ln({chosen:l===s})}"
aria-pressed=${String(l===s)}
@click=${()=>t.set({pick:l})}
>
<span class="t"><bdi>${S(i)}</bdi></span>
</button>
<i
class=${l===s?"chosen":""}
.style="width:${(100*a/r).toFixed(1)}%"
></i>
<strong>${X(a)}</strong>`)}
</div>`}var ln=t=>Object.keys(t).filter(e=>t[e]).join(" "),zs=t=>/^[\p{P}]$/u.test(t);function Vs(t){return ut(t)?"e":zs(t)?"p":""}function Ks(t,[e,n],s){let o=[];for(let r=e;r<n;r+=1)zs(t[r])&&o.length?o.at(-1).push(r):o.push([r]);return o.map(r=>u`<span class="g">${r.map(i=>s(t[i],i))}</span>`)}function Ds(t,e,n,s){let o=e.target.closest(".w");if(!o)return;fe(t,e,n);let r=s.can(Number(o.dataset.at))?Number(o.dataset.at):null;t.hot!==r&&(t.hot=r,t.drawFirst())}function qs(t){fe(t,null),t.hot!==null&&(t.hot=null,t.drawFirst())}function fe(t,e,n){let s=e?.target.closest(".w");t.lit=s?{text:n,at:Number(s.dataset.at)}:null,t.light?.()}function Ti({by:t,looks:e,kind:n,word:s,without:o},r,i){if(t===void 0)return"";if(t==="looks")return u`numbers: share of attention <span class="long">of ${e.says}</span>`;let a=u`dotted: what <em><bdi>${i.word}</bdi></em> depended on before`;return!o||!r.some(l=>l>0)?i.length?a:"":u`${i.length?an("numbers:",""):"numbers:"}
${an(n==="vectors"?"cosine of the vector of":"probability of","")}
${A(s,!0)} without
${i.length?u`${an("that word;","it;")} ${a}`:"that word"}`}var an=(t,e)=>u`<span class="long">${t}</span><span class="brief">${e}</span>`;function Oi({kind:t,written:e,optionsLabel:n,word:s,own:o}){let r=e?.label??n;return t==="looks"||t==="vectors"||s===void 0?r?u`<strong>${r}</strong>`:"":o===void 0?u`<strong>${r}</strong>`:u`<strong>${r}</strong> ${A(s,!0)} has
<span class="o">probability ${X(o)}</span>`}function Ei(t,{kind:e,by:n,chosen:s,written:o},r){let{origin:i,source:a}=t,l=Object.assign([],{word:""});if(e!=="written"||n!=="depends"||!i||i===a)return l;let c=ot(s,o.words,o.before),d=o.before[c];if(d===o.words[s]||i.header.texts.source.length!==a.header.texts.source.length)return l;let h=i.answer.probabilities[c],f=Object.entries(i.header.changes.erased).filter(([m,{probabilities:w}])=>h-w[c]>.05&&r[m]<.05).map(([m])=>Number(m));return Object.assign(f,{word:d})}function Ci(t){return u`<div class="tools" role="toolbar" aria-label="Text, model and picture">
${t.engine?u`<button class="plain" @click=${()=>Wi(t)}>
Another ${t.source.header.texts.source?"sentence":"text"}
</button>
${es(t)}`:p}
${Ni(t)}
</div>`}function Ni(t){return u`<details class="tweaks">
<summary>Share</summary>
<div class="sheet" data-apart>
<button @click=${()=>Li(t)}>Copy the link to this screen</button>
<button @click=${()=>Ue(t,"svg")}>Save the picture as SVG</button>
<button @click=${()=>Ue(t,"png")}>Save the picture as PNG</button>
<p class="hint" role="status">${t.state.copied}</p>
</div>
</details>`}async function Li(t){let e=await navigator.clipboard?.writeText(location.href).then(()=>"The link is copied.",()=>null);t.set({copied:e??"The browser does not allow it: copy the address of this page."})}async function Wi(t){await t.set({types:!t.state.types});let e=t.element.querySelector("#sentence");e?.focus(),e?.select()}var ji=(t,{kind:e})=>!!t.engine||e!=="next"&&e!=="masked",Ii=u`<button disabled>
<strong>…</strong><span>trying words and heads</span>
</button>`;function Pi(t,e){let s=(t.engine?ft(t):de(t,e))??[null,null,null];return u`<div class="try" role="toolbar" aria-label="Experiments">
${s.map(o=>o?u`<button aria-pressed=${String(!!o.on(t.state))} @click=${o.press}>
<strong>${o.title}</strong><span>${o.says}</span>
</button>`:Ii)}
</div>`}function Fi(t,e){let n=e.target.matches("input"),s=e.key==="z"&&(e.ctrlKey||e.metaKey)&&!n;e.key==="Escape"&&t.state.types?t.set({types:!1}):s||e.key==="Escape"&&!n?Be(t):ue(e)}var dn={layer:{title:"layer and head",says:""},entropy:{title:"entropy",says:"low: each word looks at few others; high: at all alike",unit:"nats"},distance:{title:"distance",says:"the mean distance between a word and what it looks at",unit:"words"},first:{title:"weight of the first word",says:"a head that looks there does little (an attention sink)"},received:{title:"most received",says:"the largest share of all weight that one word receives"},effect:{title:"effect on the word",says:"how far the log odds of the word fall when the head gives nothing; one head alone: of two that do the same, neither may have an effect"},apart:{title:"distance from the other",says:"the mean Jensen-Shannon distance from the same head of what is compared: 0 equal, 1 no key in common"}},Ri=new Set(["apart","effect"]);function me(t,e){if(dn[e]||!Object.hasOwn(t.links,e))return dn[e]??{title:e,says:""};let[n,s]=t.links[e];return{title:`relation: ${e}`,says:`the mean weight on the right word, over ${n} link${n===1?"":"s"} of this text that rules for English find; ${s.toFixed(2)} if all words had the same weight; one text says little about a head in general`}}var it=14,K=15,hn=3,Hi=56,cn=100;function Gs(t){let{state:e,attention:n}={state:t.state,attention:t.attention};Cs(t);let s=["layer",...Object.keys(n.statistics)],o=s.includes(e.sort)?e.sort:"layer",r=me(n,o),i=Qs(n,o),a=Js(o)?"highest":"lowest",l=r.says?`Sorted by ${r.title} (${r.says}), the ${a} first. `:"",c=t.source.header.attentions,[d,h]=n.shape,f=Math.max(i.findIndex(([m,w])=>m===e.layer&&w===e.head),0);return u`
<h2>What does each head do?</h2>
<div class="bar">
${c.length>1?M("Attention",c.map((m,w)=>[w,m.name]),e.kind,m=>t.set({kind:m})):""}
${M("Sort by",s.map(m=>[m,me(n,m).title]),o,m=>t.set({sort:m}))}
${ee(t,!1)} ${Yt(t)} ${V("heads")}
</div>
<p class="hint">
${n.name}. Rows: ${n.row_title}. Columns: ${n.column_title}.
${n.sums??""} ${l}Choose a head to see it large; each small map shows the largest
weight of each part. Above each map: layer.head, both counted from 0, so
${d-1}.${h-1} is head ${h-1} of layer
${d-1}${o==="layer"?"":`; then the ${r.title}`}.
</p>
${Bi(t)} ${ne(t,!1)}
<canvas
class="heads"
tabindex="0"
role="application"
aria-roledescription="map of heads"
aria-label="Heads; arrow keys move, Enter opens a head. ${Xs(n,i,f)}"
data-chosen=${f}
${_(m=>Ys(t,m,i,f,o))}
@click=${m=>Zs(t,i,zi(m))}
@keydown=${m=>Vi(t,m,i,f)}
></canvas>
<details class="twin">
<summary>The same as a table</summary>
${Ki(t,n,i,s)}
</details>
`}function Qs(t,e){let[n,s]=t.shape,o=[];for(let l=0;l<n;l+=1)for(let c=0;c<s;c+=1)o.push([l,c]);let r=t.statistics[e],i=Js(e)?-1:1,a=([l,c])=>r[l][c]??i*(1/0);return r?o.sort((l,c)=>a(l)===a(c)?0:i*(a(l)-a(c))):o}function Js(t){return Ri.has(t)||!dn[t]}var xt=(t,e)=>t===null?"\u2013":`${t<0?"\u2212":""}${Math.abs(t).toFixed(e)}`;function Bi(t){let{source:e,attention:n}=t,{effects:s}=e,o=R(t);if(!t.engine||s?.place===o&&!n.statistics.effect)return"";if(s?.place!==o)return u`<p class="hint" role="status" data-effects>
Switching off one head after the other…
</p>`;let r=Qs(n,"effect")[0],i=s.others.map((d,h)=>u`${h?" or ":""}<bdi>${d}</bdi>`),a=i.length?u` rather than ${i}`:"",l=r.join("."),c=u`“<bdi>${s.word}</bdi>”`;return u`<p class="hint" data-effects>
What each head does for ${c}${a}: without ${l} its log odds of ${xt(s.own,2)}
fall by ${xt(n.statistics.effect[r[0]][r[1]],2)}, more than without any other
head here. The bar above a map is as long as its head's effect, and red if the word gains
without it. Without all heads of a layer they fall by
${n.layers.map((d,h)=>`${xt(d,2)} (layer ${h})`).join(", ")}.
</p>`}function Xs(t,e,n){let[s,o]=e[n],r=Object.entries(t.statistics).map(([i,a])=>`${me(t,i).title} ${xt(a[s][o],2)}`);return`Layer ${s}, head ${o}: ${r.join(", ")}.`}function Di(t,e,n){let s=Math.max(t.parentElement.clientWidth-2,200),o=s-2*hn+it,r=e.shape[1],i=Math.max(Math.min(Math.floor(o/(Hi+it)),r),1),a=i;for(;r%a;)a-=1;2*a<=i&&(a=i);let l=Math.min(Math.floor(o/a)-it,150),[,,c,d]=e.shape,h=Math.min(Math.max(Math.round(l*c/d),24),2*l);return{width:s,side:l,tall:h,across:a,down:Math.ceil(n.length/a)}}async function Ys(t,e,n,s,o){let{kind:r,scale:i}=t.state,{attention:a}=t,l=await t.source.thumbnails(r);if(!e.isConnected||t.state.view!=="heads")return;let{width:c,side:d,tall:h,across:f,down:m}=Di(e,a,n);e.grid={side:d,tall:h,across:f},t.light=()=>e.isConnected&&t.state.view==="heads"&&Ys(t,e,n,s,o);let w=U(e,c,m*(h+K+it)),g=W(e),{effect:$}=a.statistics,y=Math.max(...$?.flat().map(Math.abs)??[]),k=new OffscreenCanvas(l.columns,l.rows),b=zt();w.imageSmoothingEnabled=!1,n.forEach(([x,v],E)=>{let I=hn+E%f*(d+it),at=Math.floor(E/f)*(h+K+it);Ui(k,l,x*a.shape[1]+v,b,i),w.drawImage(k,I,at+K,d,h),Q(w,11),w.fillStyle=g.faint;let jn=a.statistics[o];w.fillText(`${x}.${v}${jn?`  ${xt(jn[x][v],2)}`:""}`,I,at+K/2),$&&y&&(w.fillStyle=Kt(Math.sign($[x][v])),w.fillRect(I,at+K-4,d*Math.abs($[x][v])/y,3));let Dt=E===s?2:.5;w.strokeStyle=E===s?g.accent:g.line,w.lineWidth=E===s?3:1,w.strokeRect(I-Dt,at+K-Dt,d+2*Dt,h+2*Dt),qi(w,t,[I,at+K,d,h],g),t.state.off?.split(",").includes(`${a.kind}.${x}.${v}`)&&(w.strokeStyle=g.lit,w.lineWidth=2,w.beginPath(),w.moveTo(I,at+K+h),w.lineTo(I+d,at+K),w.stroke())})}function qi(t,{lit:e,attention:n},[s,o,r,i],a){if(!e)return;let[,,l,c]=n.shape;t.strokeStyle=a.lit,t.lineWidth=1.5,n.rows===e.text&&t.strokeRect(s-1,o+i*e.at/l,r+2,Math.max(i/l,3)),n.columns===e.text&&t.strokeRect(s+r*e.at/c,o-1,Math.max(r/c,3),i+2),n.columns==="read"&&e.text==="target"&&e.at+1<c&&t.strokeRect(s+r*(e.at+1)/c,o-1,Math.max(r/c,3),i+2)}function Ui(t,{rows:e,columns:n,bytes:s},o,r,i){let a=new ImageData(n,e),l=new Uint32Array(a.data.buffer),c=o*e*n;for(let d=0;d<l.length;d+=1){let h=s[c+d]/255;l[d]=r[Ot(i==="root"?h:h*h)]}t.getContext("2d").putImageData(a,0,0)}function zi(t){let{side:e,tall:n,across:s}=t.currentTarget.grid,[o,r]=nt(t),i=Math.min(Math.max(Math.floor((o-hn)/(e+it)),0),s-1);return Math.floor(r/(n+K+it))*s+i}function Zs(t,e,n){e[n]&&t.set({layer:e[n][0],head:e[n][1],view:"map"})}function Vi(t,e,n,s){if(e.key==="Enter"||e.key===" "){e.preventDefault(),Zs(t,n,s);return}let{across:o}=e.currentTarget.grid,r=[Math.floor(s/o),s%o],i=z(e,r,[Math.ceil(n.length/o),o]);if(i===null)return;let a=Math.min(i[0]*o+i[1],n.length-1);t.set({layer:n[a][0],head:n[a][1],said:Xs(t.attention,n,a)})}function Ki(t,e,n,s){let o=s.filter(a=>a!=="layer"),r=(a,l,c)=>xt(e.statistics[a][l][c],3),i=n.length>cn?u`<p class="hint">The first ${cn} of ${n.length}.</p>`:"";return u`${C("Heads as a table",u`<table>
${j("Layer","Head",...o.map(a=>me(e,a).title))}
<tbody>
${n.slice(0,cn).map(([a,l])=>u`<tr>
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
${i}`}var Gi=44,to=9,Qi=110,eo=20;function so(t,e){let{state:n,words:s}=t,o=we(t,e,n.row,un(t,e));return u`
<h2>Heat map</h2>
<div class="bar">
${pt(t)} ${ee(t)} ${ht(e)} ${V("heatmap")}
</div>
<p class="hint">
${t.attention.name}. Rows: ${t.attention.row_title}. Columns:
${t.attention.column_title}.
${rs(t.attention)}${t.attention.unwritten?" Grey cells did not exist yet.":""}
</p>
<div class="beside">
<div>
<div class="map" tabindex="-1">
<canvas
class="heatmap"
tabindex="0"
role="application"
aria-roledescription="heat map"
aria-label="Weights; arrow keys move. ${o}"
${_(r=>Xi(t,r,e))}
@pointermove=${r=>no(t,r,e)}
@click=${r=>no(t,r,e)}
@keydown=${r=>Yi(t,r,e)}
></canvas>
<div class="cursor" aria-hidden="true"></div>
</div>
<p class="readout" data-readout>${o}</p>
${ne(t)}
</div>
<details class="twin" open>
<summary>The row of <bdi>${s.rows[n.row]}</bdi> as a table</summary>
${gn(t,e)}
</details>
</div>
`}var un=({state:t},e)=>t.column??T(e.row(t.row),1)[0];function we(t,e,n,s){let{rows:o,columns:r}=t.words;if(oo(t,e,n,s))return`${o[n]} (${n}) could not look at ${r[s]} (${s}).`;let i=e.at(n,s),a=1;for(let l of e.row(n))l>i&&(a+=1);return`${o[n]} (${n}) looks at ${r[s]} (${s}) with weight ${O(i)}, rank ${a} of ${r.length}.`}function oo(t,e,n,s){return t.attention.unwritten&&s>n&&e.at(n,s)===0}function fn(t,e){let n=Math.max(t.parentElement.clientWidth-2,240),s=n<520,o=c=>c>=to,[r,i]=s?[80,30]:[Qi,56],a=Math.min((n-r-i)/e.columns,Gi),l=window.devicePixelRatio||1;return o(a)||(a=Math.max(Math.min((n-38)/e.columns,to-.5),1/l)),a=a>=2?Math.floor(a*l)/l:a,o(a)?{cell:a,left:r,right:i,top:78,named:!0,ratio:l}:{cell:a,left:24,right:12,top:24,named:!1,ratio:l}}function Ji(t,{scale:e},n){let s=new OffscreenCanvas(t.columns,t.rows),o=new ImageData(t.columns,t.rows),r=new Uint32Array(o.data.buffer),i=zt();for(let a=0,l=0;a<t.rows;a+=1){let c=t.row(a),d=e==="largest"?c[T(c,1)[0]]:1;for(let h=0;h<t.columns;h+=1,l+=1)r[l]=n&&n(a,h)?0:i[Ot(Yn(c[h],e,d))]}return s.getContext("2d").putImageData(o,0,0),s}function Xi(t,e,n){let s=fn(e,n),{cell:o,left:r,right:i,top:a,named:l}=s,[c,d]=[n.columns*o,n.rows*o],h=W(e),f=[n.rows,t.state.scale,h.unseen,c,e.parentElement.clientWidth].join();if(e.place=s,e.painted!==n||e.key!==f){e.painted=n,e.key=f;let m=U(e,r+c+i,a+d+2);m.fillStyle=h.unseen,m.fillRect(r,a,c,d),m.imageSmoothingEnabled=o*s.ratio<1,m.drawImage(Ji(n,t.state,(w,g)=>oo(t,n,w,g)),r,a,c,d),m.strokeStyle=h.line,m.strokeRect(r-.5,a-.5,c+1,d+1),l?mn(m,t.words,s,h):wn(m,n,s,h)}Pt(e,t.state.row,un(t,n))}function mn(t,{rows:e,columns:n},{cell:s,left:o,right:r,top:i},a){Q(t,Math.min(Math.max(s*.62,8),13)),t.fillStyle=a.ink,t.textAlign="right",e.forEach((c,d)=>t.fillText(et(t,c,o-8),o-5,i+(d+.5)*s)),t.textAlign="left";let l=o+n.length*s+r;n.forEach((c,d)=>{let h=Math.SQRT2*(l-o-(d+.5)*s)-8;t.save(),t.translate(o+(d+.5)*s,i-5),t.rotate(-Math.PI/4),t.fillText(et(t,c,Math.min(96,h)),0,0),t.restore()})}function wn(t,e,{cell:n,left:s,top:o},r,i=1){Q(t,10),t.fillStyle=r.faint;let a=[10,20,50,100,200,500,1e3].find(l=>l*n>=40)??5e3;t.textAlign="center";for(let l=0;l<e.columns;l+=a)t.fillText(String(l*i),s+(l+.5)*n,o-8);t.textAlign="right";for(let l=0;l<e.rows;l+=a)t.fillText(String(l*i),s-3,o+(l+.5)*n)}function Pt(t,e,n){let{cell:s,left:o,top:r}=t.place,{style:i}=t.parentElement.querySelector(".cursor"),a=Math.max(s,6),[l,c]=[o+(n+.5)*s,r+(e+.5)*s];i.transform=`translate(${l-a/2}px, ${c-a/2}px)`,i.width=`${a}px`,i.height=`${a}px`}function ge(t,{rows:e,columns:n}){let{cell:s,left:o,top:r}=t.currentTarget.place,[i,a]=nt(t),[l,c]=[Math.floor((a-r)/s),Math.floor((i-o)/s)];return l>=0&&c>=0&&l<e&&c<n?[l,c]:[]}function no(t,e,n){let s=e.currentTarget,[o,r]=ge(e,n);o!==void 0&&(Pt(s,o,r),e.type==="click"?t.set({row:o,column:r,said:we(t,n,o,r)}):te(s.parentElement.nextElementSibling,we(t,n,o,r)))}function Yi(t,e,n){let{row:s}=t.state,o=z(e,[s,un(t,n)],[n.rows,n.columns]);o!==null&&t.set({row:o[0],column:o[1],said:we(t,n,...o)})}function gn(t,e){let{row:n}=t.state,{columns:s}=t.words,o=e.row(n),r=T(o,eo),i=Math.max(0,o.reduce((c,d)=>c+d,0)-r.reduce((c,d)=>c+o[d],0)),a=s.length-eo,l=a>0?`The other ${a} keys together: ${O(i)}. `:"";return u`${C("The largest weights of the row",u`<table>
${j("Rank","Place","Word","Weight")}
<tbody>
${r.map((c,d)=>u`<tr>
<td>${d+1}</td>
<td>${c}</td>
<th scope="row"><bdi>${s[c]}</bdi></th>
<td>${O(o[c])}</td>
</tr>`)}
</tbody>
</table>`)}
<p class="hint">${l}Entropy of the row: ${e.entropy(n).toFixed(3)} nats.</p>`}var G=22,kt=16,ro=640;function io(t,e){let n=e*G;t.revealed!==e&&(t.revealed=e,(n<t.scrollTop||n+G>t.scrollTop+t.clientHeight)&&(t.scrollTop=n-t.clientHeight/2))}function $n(t,e,n){let s=e.parentElement.parentElement,o=Math.max(s.clientWidth-2,240),r=U(e,o,e.tall),i=W(e),{rows:a,columns:l}=t.words,c=Math.min(Math.max(o*.24,70),190),d=$=>$*G+G/2+4-s.scrollTop,h=Math.max(Math.floor(s.scrollTop/G)-1,0),f=h+Math.ceil(e.tall/G)+2,m=($,y,k)=>Zi(r,n.links($,t.state.share,kt).links,d($),d,[c+6,o-c-6],y,k),w=n.rows>1?.35:1;for(let $=h;$<Math.min(f,n.rows);$+=1)$!==t.state.row&&m($,i.faint,w);t.state.row>=h-40&&t.state.row<=f+40&&m(t.state.row,i.accent,1);let g=($,y,k,b)=>{r.textAlign=k;for(let x=h;x<Math.min(f,$.length);x+=1)Q(r,13,x===b?"bold":"normal"),r.fillStyle=x===b?i.accent:i.ink,r.fillText(et(r,$[x],c-6),y,d(x))};g(a,c,"right",t.state.row),g(l,o-c,"left",-1)}function Zi(t,e,n,s,[o,r],i,a){t.strokeStyle=i;for(let{key:l,weight:c}of e)t.globalAlpha=a<1?a*Math.min(.15+.85*c,1):Math.min(.45+.55*c,1),t.lineWidth=.8+4*c+(a<1?0:.5),t.beginPath(),t.moveTo(o,n),t.bezierCurveTo((o+r)/2,n,(o+r)/2,s(l),r,s(l)),t.stroke();t.globalAlpha=1}function ao(t,e){let{state:n,words:s}=t,o=Math.max(e.rows,e.columns),r=Math.min(o*G+8,ro),{hidden:i,links:a}=e.links(n.row,n.share,kt);return u`
<h2>Links</h2>
<div class="bar">
${pt(t)} ${ht(e)} ${V("lines")}
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
${(100*ta(e,n.share)).toFixed(0)} % of all</span
>
</div>
<p class="hint">
On the left ${t.attention.row_title}, on the right ${t.attention.column_title}. Each word
is linked to as few words as carry the chosen share of its weight, at most ${kt}. Choose a
word on the left. ${t.attention.says}
</p>
<div
class="links"
@scroll=${l=>$n(t,l.currentTarget.querySelector("canvas"),e)}
tabindex="-1"
>
<div
class="tall"
${_(l=>{l.style.height=`${o*G+8}px`,l.parentElement.style.maxHeight=`${r+2}px`})}
>
<canvas
class="lines"
tabindex="0"
role="application"
aria-roledescription="links"
aria-label="Links; up and down arrows choose a word. ${bn(t,e)}"
${_(l=>{l.tall=r,io(l.parentElement.parentElement,n.row),$n(t,l,e)})}
@click=${l=>ea(t,l,e)}
@keydown=${l=>na(t,l,e)}
></canvas>
</div>
</div>
<p class="readout">${bn(t,e)}</p>
<details class="twin">
<summary>The row of <bdi>${s.rows[n.row]}</bdi> as a table</summary>
${gn(t,e)}
</details>
${a.length===0?u`<p class="hint">This word looks at nothing.</p>`:""}
`}function ta(t,e){if(t.hiddenShare!==e){let[n,s]=[0,0];for(let o=0;o<t.rows;o+=1){n+=t.links(o,e,kt).hidden;for(let r of t.row(o))s+=r}t.hiddenShare=e,t.hiddenMass=s?n/s:0}return t.hiddenMass}function bn(t,e){let{rows:n,columns:s}=t.words,{links:o,hidden:r}=e.links(t.state.row,t.state.share,kt),i=o.slice(0,5).map(({key:a,weight:l})=>`${s[a]} (${l.toFixed(2)})`).join(", ");return`${n[t.state.row]} looks at ${i||"nothing"}; ${(100*r).toFixed(0)} % of its weight is hidden.`}function ea(t,e,n){let s=e.currentTarget.parentElement.parentElement,o=Math.floor((nt(e)[1]+s.scrollTop-4)/G);o>=0&&o<n.rows&&t.set({row:o})}function na(t,e,n){let s=z(e,[t.state.row,0],[n.rows,1]);s!==null&&t.set({row:s[0],said:""}).then(()=>t.set({said:bn(t,n)}))}var lo="Probabilities are among all words, after the words that stand before; of a word in several sub-words the product.",sa={written:{of:"source",one:"Written word",says:lo,ends:""},next:{of:"text",one:"Next word",says:lo,ends:"Words up to the changed one were predicted before it was read, so their probability stays."},masked:{of:"text",one:"Masked word",says:"Probabilities are among all words. Each masked word is named by what is most probable there in the text as it is.",ends:""},vectors:{of:"text",one:"Word",says:"The cosine is between the vectors that the last layer gives a word before and after: 1 is the same direction. Of a word in several sub-words their mean is taken.",ends:""}};function ho(t){let{header:e}=t.source,{changes:{follows:n="words",unchanged:s,erased:o}}=e,{texts:r}=(t.source.base??t.source).header,i=n!=="words"?n:r.target?"written":"next",a={written:()=>r.target,next:()=>[...r.text.slice(1),s.likeliest.at(-1)[0][0]],masked:()=>s.likeliest.map(([[b]])=>b),vectors:()=>r.text}[i](),l=i==="next"?1:0,c=Object.keys(o).map(Number),d=t.source.header.changes.now,h=c.includes(t.state.changed)?t.state.changed:null,f=oa(t,{kind:i,first:l,places:c,chosen:h,last:a.length-1}),m=b=>i==="masked"?`${a[b]} (masked place ${b+1})`:l&&b===a.length-1?`${a[b]} (what follows)`:a[b],w=b=>i==="vectors"?b.similarities:b.probabilities,g=b=>w(o[b])[f],$=c.filter(b=>i==="next"?b<=f:i!=="vectors"||b!==f),y=$.length?$:c,k=h??y[T(y.map(b=>-g(b)),1)[0]];return{kind:i,...sa[i],source:r.source??r.text,follow:a,written:f,named:m,numbers:w,unchanged:s,erased:o,places:c,place:k,all:d}}function oa({state:t},{kind:e,first:n,places:s,chosen:o,last:r}){let i=c=>Math.min(Math.max(Number(c),0),r);if(e==="written")return i(t.row);if(t.next!==void 0)return i(t.next);if(e!=="next")return i(e==="masked"?0:t.row);let a=t.row-n,l=a>=Math.min(...s)?i(a):r;return Math.max(l,o??0)}function uo(t){let e=ho(t),{kind:n,source:s,follow:o,written:r,named:i,numbers:a,unchanged:l,erased:c,places:d,place:h,all:f}=e,m=f??c[h],w=t.engine&&t.source.answer.erasable.length?"Each word is erased in turn\u2026":`The ${e.of} has no word that can be erased.`;if(!m)return u`<h2>What if a word were missing?</h2>
<p class="hint">${w}</p>`;let g=(b,x,v)=>n==="vectors"?[b,[],a(x)[v],[]]:[b,[a(l)[v]],a(x)[v],[x.likeliest[v].map(([E,I])=>`${E} ${X(I)}`).join(", ")]],$=b=>n==="vectors"?[b,"Cosine"]:[b,"Before","Now","Most probable now"],y=`Each ${e.one.toLowerCase()}`,k=u`“<bdi>${i(r)}</bdi>”`;return u`
<h2>${t.engine?"What if it were changed?":"What if a word were missing?"}</h2>
${t.engine?u`<p class="hint">
Press words above to erase them, switch heads off in “Heads”, or change the model.
</p>`:p}
<div class="bar">
${f?p:M("Without",d.map(b=>[b,s[b]]),h,b=>ra(t,Number(b)))}
${M(e.one,o.map((b,x)=>[x,i(x)]),r,b=>t.set(n==="written"?{row:b}:{next:b}))}
</div>
<p class="summary" data-change>${fo(e,m,h)}</p>
<div class="columns">
<section class="panel">
<h3>${y} ${f?"now":u`without “<bdi>${s[h]}</bdi>”`}</h3>
${co(y,$("Word"),o.map((b,x)=>g(i(x),m,x)),r)}
</section>
${f?p:u`<section class="panel">
<h3>${k} without each word</h3>
${co("Erasures",$("Without"),d.map(b=>g(s[b],c[b],r)),d.indexOf(h))}
</section>`}
</div>
<p class="hint">
${e.says} An erased word keeps its place and has the mean embedding of the words of the
${e.of}. ${e.ends}
</p>
`}function fo({kind:t,source:e,follow:n,named:s,numbers:o,written:r,unchanged:i,all:a},l,c){let d=o(l)[r],h=a?"As changed":`Without \u201C${e[c]}\u201D`;if(t==="vectors"){let $=n.map((b,x)=>x).filter(b=>b!==c),y=$[T($.map(b=>-o(l)[b]),1)[0]],k=y===void 0?"":y===r?"; that of no other word moves more":`; of the other words that of \u201C${s(y)}\u201D moves most (${o(l)[y].toFixed(3)})`;return`${h}, the vector of \u201C${s(r)}\u201D has a cosine of ${d.toFixed(3)} with the one before${k}.`}if(t==="next"&&!a&&r<c)return`The probability of \u201C${s(r)}\u201D stays ${O(d)}: the model predicts it before it reads \u201C${e[c]}\u201D.`;let[f,m]=l.likeliest[r][0],w=o(i)[r],g=d<m?`; most probable there is \u201C${f}\u201D (${O(m)})`:"";return`${h}, the probability of \u201C${s(r)}\u201D `+(O(d)===O(w)?`stays ${O(d)}${g}.`:`is ${O(d)} instead of ${O(w)}${g}.`)}function co(t,e,n,s){return C(t,u`<table>
${j(...e)}
<tbody>
${n.map(([o,r,i,a],l)=>u`<tr class=${l===s?"chosen":""}>
<th scope="row"><bdi>${o}</bdi></th>
${r.map(c=>u`<td>${O(c)}</td>`)}
<td>
<meter
min="0"
max="1"
value=${String(i)}
aria-label=${e.length>2?"probability":"cosine"}
></meter>
${O(i)}
</td>
${a.map(c=>u`<td><bdi>${c}</bdi></td>`)}
</tr>`)}
</tbody>
</table>`)}function ra(t,e){t.state.changed=e;let n=ho(t);t.set({changed:e,said:fo(n,n.erased[e],e)})}var mt=(t,e)=>Math.floor(t/e),mo=(t,e)=>t-e*mt(t,e),ia=t=>e=>t.some(([n,s])=>e>=n&&e<=s),$o={full:[[],()=>()=>!0],causal:[[],()=>(t,e)=>e<=t],sliding_window:[["size"],t=>(e,n)=>Math.abs(e-n)<=t>>1],causal_window:[["size"],t=>(e,n)=>n<=e&&e-n<t],diagonals:[["back","ahead"],(t=null,e=null)=>(n,s)=>(t===null||s-n>=-t)&&(e===null||s-n<=e)],prefix:[["length"],t=>(e,n)=>n<t],key_span:[["start","stop"],(t=0,e=null)=>(n,s)=>s>=t&&(e===null||s<e)],lattice:[["stride"],t=>(e,n)=>(e-n)%t===0],strided:[["stride","local"],(t,e=!0)=>(n,s)=>(n-s)%t===0||e&&Math.abs(n-s)<t],dilated_window:[["size","dilation"],(t,e)=>(n,s)=>(n-s)%e===0&&Math.abs(n-s)<=e*(t>>1)],same_block:[["size","offset"],(t,e=0)=>(n,s)=>mt(n-e,t)===mt(s-e,t)],summary:[["stride","last"],(t,e=1)=>(n,s)=>mo(s,t)>=t-e],fixed:[["stride","summary","local"],(t,e=1,n=!0)=>(s,o)=>mo(o,t)>=t-e||n&&mt(s,t)===mt(o,t)],random_blocks:[["count","block","seed","past"],la]},pn={key_set:t=>(e,n)=>t(n),query_set:t=>e=>t(e),global_tokens:t=>(e,n)=>t(e)||t(n)},aa=[...Object.keys($o),...Object.keys(pn),"per_head"],wo={all:null,true:!0,false:!1},yn=class{constructor(e){this.text=e,this.words=[];let n=/\s*([^\W\d]\w*|-?\d+(?!\w|\.\d)|\.\.|[()&|~,=])/y,s=e.trimEnd().length;for(;n.lastIndex<s;){let o=n.lastIndex,r=n.exec(e);if(!r)throw this.error(`\u201C${e.slice(o).trim().slice(0,20)}\u201D is not understood`);this.words.push(r[1])}this.at=0}error(e){return new Error(`The pattern \u201C${this.text.slice(0,80)}\u201D cannot be read: ${e}; an example is \u201Ccausal & sliding_window(4)\u201D.`)}take(e){return this.words[this.at]!==e?!1:(this.at+=1,!0)}need(e){if(!this.take(e))throw this.error(`\u201C${e}\u201D is missing`)}whole(){let e=this.either();if(this.at<this.words.length)throw this.error(`\u201C${this.words[this.at]}\u201D follows a pattern that is complete`);return e}either(){let e=[this.both()];for(;this.take("|");)e.push(this.both());return e.length===1?e[0]:(...n)=>e.some(s=>s(...n))}both(){let e=[this.single()];for(;this.take("&");)e.push(this.single());return e.length===1?e[0]:(...n)=>e.every(s=>s(...n))}single(){if(this.take("~")){let r=this.single();return(...i)=>!r(...i)}if(this.take("(")){let r=this.either();return this.need(")"),r}let e=this.words[this.at];if(!aa.includes(e))throw this.error(e?`there is no pattern \u201C${e.slice(0,40)}\u201D here`:"a pattern is missing");if(this.at+=1,e==="per_head"){let r=this.listed(()=>this.either());return(i,a,l,c)=>r[c](i,a,l,c)}if(Object.hasOwn(pn,e))return pn[e](ia(this.listed(()=>this.run())));let[n,s]=$o[e],o=[];for(let[r,i]of this.listed(()=>this.argument(),n)){let a=r===null?o.length:n.indexOf(r);if(a<0||a>=n.length)throw this.error(`${e} takes (${n.join(", ")})`);o[a]=i}if(o.length<s.length)throw this.error(`${e} takes (${n.join(", ")})`);return s(...o)}listed(e){let n=[];if(this.take("("))for(;!this.take(")");)n.length&&this.need(","),n.push(e());return n}argument(){return this.words[this.at+1]!=="="?[null,this.value()]:(this.at+=2,[this.words[this.at-2],this.value()])}value(){let e=this.words[this.at];return Object.hasOwn(wo,e)?wo[this.words[this.at++]]:this.number()}number(){let e=this.words[this.at];if(!/^-?\d{1,18}$/.test(e??""))throw this.error("a whole number is missing");return this.at+=1,Number(e)}run(){let e=this.number();return[e,this.take("..")?this.number():e]}};function la(t,e=64,n=0,s=!1){let o=new Map;return(r,i,a)=>{let l=mt(r,e),c=s?l+1:Math.ceil(a/e),d=mt(i,e);if(c<=t)return d<c;let h=`${l} ${c}`;return o.has(h)||o.set(h,ca(t,BigInt(n),BigInt(l),c)),o.get(h).has(d)}}function ca(t,e,n,s){let o=new Set;for(let r=0;r<t;r+=1){let i=s-t+r,a=da(e,n,BigInt(r),BigInt(i+1));o.add(o.has(a)?i:a)}return o}var $e=t=>BigInt.asUintN(64,t);function da(t,e,n,s){let o=go($e((e+1n)*0x9e3779b97f4a7c15n+t)),r=go($e(o+(n+1n)*0xc2b2ae3d27d4eb4fn));return Number((r>>32n)*s>>32n)}function go(t){return t=$e((t^t>>30n)*0xbf58476d1ce4e5b9n),t=$e((t^t>>27n)*0x94d049bb133111ebn),t^t>>31n}function bo(t){let e=new yn(t).whole(),n=t.includes("per_head"),s=new Map;return(o,r,i)=>{let a=`${o} ${r} ${n?i:""}`,l=s.get(a);return l||(l=Int32Array.from({length:r},(c,d)=>d).filter(c=>e(o,c,r,i)),s.size>2e4&&s.clear(),s.set(a,l)),l}}var ha=["no pair is allowed","some pairs are allowed","all pairs are allowed"],xn=100,ua=["Length","Allowed pairs","Share of all","Computed here","Backend","A query may look at"],fa="Draw with the mouse, or press the space bar, to allow pairs and to forbid them; the text of the pattern follows.";function yo(t){let{patterns:e}=t.source.header,n=Math.min(t.state.pattern,e.length-1),s=t.engine?ma(t,e[n]):e[n],o=Math.min(t.state.panel,s.panels.length-1),r=[t.source.header.title,n,o,s.panels[o].text].join("/"),i=()=>t.pairs?.key===r&&t.pairs.source===t.source?t.pairs:null;i()||pa(t,s,o,r);let a=i(),l=s.panels[o];return u`
<h2>Who may look at whom?</h2>
<div class="bar">
${e.length>1?M("Used in",e.map(({name:c},d)=>[d,c]),n,c=>t.set({pattern:Number(c),panel:0})):p}
${s.panels.length>1?M("Heads",s.panels.map(({heads:c},d)=>[d,c.join(", ")]),o,c=>t.set({panel:Number(c)})):p}
${s.drawable?Xt(t,s.drawable):p}
<span class="badge">counted exactly</span> ${V("pattern")}
</div>
<p class="summary">
<code><bdi>${l.text}</bdi></code
>: ${pe(l.pairs)} of ${pe(s.q_len*s.k_len)} pairs
(${Mn(l.pairs,s.q_len*s.k_len)}).
</p>
<p class="hint">
Rows: queries. Columns: keys.
${s.rows.length?"Sub-words, as the model reads them. ":""}${s.q_start?`Queries are at positions ${s.q_start} to ${s.q_start+s.q_len-1}. `:""}${s.tile>1?`Each cell stands for ${s.tile} \xD7 ${s.tile} pairs. `:""}${s.note}${s.drawable?fa:""}
</p>
<div class="beside">
<div>
${a?ya(t,a):u`<p class="hint">Unpacking…</p>`}
${ka(s.tile>1)}
</div>
<div>
${s.growth.length?va(s):p}
${a?u`<details class="twin" open>
<summary>The ${s.tile>1?"rows":"queries"} as a table</summary>
${Aa(a)}
</details>`:p}
</div>
</div>
`}function ma(t,e){let{source:{header:{model:n},answer:s}}=t,o=n.kinds.find(({name:g})=>e.name.startsWith(`${g},`)),{kind:r,rows:i,columns:a}=o,l=g=>s.pieces[g==="read"?"target":g],c=He(t,r),d=c||e.text,h=l(i),f=l(a),m=d.includes("per_head")?t.source.header.attentions.find(g=>g.kind===r).shape[1]:0,w=g=>{let $=xo(d,o,h.length,f.length,g[0]);return{heads:g,text:d,states:$,shape:[h.length,f.length],pairs:$.reduce((y,k)=>y+k,0)/2}};return{...e,text:d,rows:h,columns:f,q_len:h.length,k_len:f.length,drawable:o,growth:c?[]:e.growth.slice(1),panels:m?Array.from({length:m},(g,$)=>w([$])):[w([])]}}function xo(t,{unwritten:e},n,s,o=0){let r=new Uint8Array(n*s),i;try{i=bo(e?`causal & (${t})`:t)}catch{return r}for(let a=0;a<n;a+=1)for(let l of i(a,s,o))r[a*s+l]=2;return r}var ko="\\(query_set\\([\\d., ]+\\) & key_set\\([\\d., ]+\\)\\)",wa=new RegExp(`( \\| ${ko})+$`),ga=new RegExp(`( & ~${ko})+$`);function $a(t){let e=t.replace(ga,"");return(e!==t&&e.includes("|")?e.replace(/^\((.*)\)$/s,"$1"):e).replace(wa,"")}function po(t){let e=[];for(let n of t)e.at(-1)?.[1]===n-1?e.at(-1)[1]=n:e.push([n,n]);return e.map(([n,s])=>n===s?n:`${n}..${s}`).join(", ")}function ba({states:t,rows:e,columns:n,one:s,panel:o}){let r=$a(o.text),i=xo(r,s.drawable,e,n,o.heads[0]),a=[[],[]];[2,0].forEach((c,d)=>{let h=new Map;for(let f=0;f<e;f+=1){let m=po(Array.from({length:n},(w,g)=>g).filter(w=>t[f*n+w]===c&&i[f*n+w]!==c));m&&h.set(m,[...h.get(m)??[],f])}for(let[f,m]of h)a[d].push(`(query_set(${po(m)}) & key_set(${f}))`)});let l=[r,...a[0]].join(" | ");return[a[1].length&&l.includes("|")?`(${l})`:l,...a[1].map(c=>`~${c}`)].join(" & ")}async function pa(t,e,n,s){let o=e.panels[n],[r,i]=o.shape,a=o.states??await t.source.bytes(o.place);t.pairs={key:s,source:t.source,one:e,panel:o,rows:r,columns:i,states:a},o.states||t.draw()}function ya(t,e){let n=vo(t,e),s=kn(e,...n);return u`<div class="map" tabindex="-1">
<canvas
class="pattern"
tabindex="0"
role="application"
aria-roledescription="map of pairs"
aria-label="Pairs; arrow keys move. ${s}"
${_(o=>Mo(t,o,e))}
@pointermove=${o=>vn(t,o,e)}
@click=${o=>vn(t,o,e)}
@pointerdown=${o=>xa(t,o,e)}
@pointerup=${()=>be(t,e)}
@pointerleave=${()=>be(t,e)}
@keydown=${o=>{o.key===" "&&e.one.drawable&&(o.preventDefault(),An(e,n,!e.states[n[0]*e.columns+n[1]]),be(t,e));let r=z(o,n,[e.rows,e.columns]);r&&t.set({pair:r,said:kn(e,...r)})}}
></canvas>
<div class="cursor" aria-hidden="true"></div>
</div>
<p class="readout" data-readout>${s}</p>`}function vo(t,{rows:e,columns:n}){let[s,o]=t.state.pair??[0,0];return[Math.min(s,e-1),Math.min(o,n-1)]}function Ao({states:t,columns:e,one:n},s){let o=[],r=0;for(let a=0;a<e;a+=1)t[s*e+a]&&(r+=1,o.length&&o[o.length-1][1]===a-1?o[o.length-1][1]=a:o.push([a,a]));let i=o.slice(0,6).map(([a,l])=>{let[c,d]=[a*n.tile,Math.min((l+1)*n.tile,n.k_len)-1];return c===d?`${c}`:`${c} to ${d}`}).join(", ");return{count:r,named:i+(o.length>6?` and ${o.length-6} more spans`:"")}}function kn(t,e,n){let{one:s,states:o,columns:r,rows:i}=t,a=o[e*r+n];if(s.tile>1){let w=(g,$)=>`${g*s.tile} to ${Math.min((g+1)*s.tile,$)-1}`;return`Queries ${w(e,s.q_len)}, keys ${w(n,s.k_len)}: ${ha[a]}.`}let l=(w,g)=>w.length?`${g} \u201C${w[g]}\u201D`:`${g}`,{count:c,named:d}=Ao(t,e),h=0;for(let w=0;w<i;w+=1)h+=o[w*r+n]?1:0;let[f,m]=[l(s.rows,e),l(s.columns,n)];return`Query ${f} ${a?"may":"may not"} look at key ${m}. It may look at ${c} of ${r} keys${c?`: ${d}`:""}; ${h} of ${i} queries may look at this key.`}function Mo(t,e,n){let{one:s,rows:o,columns:r,states:i}=n,a=fn(e,{rows:o,columns:r});s.rows.length||Object.assign(a,{named:!1,left:40,right:16,top:24});let{cell:l,left:c,right:d,top:h}=a,f=W(e);e.place=a;let m=U(e,c+r*l+d,h+o*l+2),w=l>=8?1:0,g=new OffscreenCanvas(r,o),$=g.getContext("2d");m.fillStyle=f.unseen,m.fillRect(c,h,r*l,o*l);for(let y=0;y<o;y+=1)for(let k=0;k<r;k+=1){let b=i[y*r+k];if(!b)continue;let[x,v,E,I]=w?[m,c+k*l,h+y*l,l-w]:[$,k,y,1];x.globalAlpha=b===1?.45:1,x.fillStyle=f.accent,x.fillRect(v,E,I,I)}m.globalAlpha=1,m.imageSmoothingEnabled=l<1,w||m.drawImage(g,c,h,r*l,o*l),a.named?mn(m,s,a,f):wn(m,{rows:o,columns:r},a,f,s.tile),Pt(e,...vo(t,n))}function vn(t,e,n){let s=e.currentTarget,[o,r]=ge(e,n);if(o===void 0)return;Pt(s,o,r),n.stroke&&(An(n,[o,r],n.stroke.allow),Mo(t,s,n));let i=kn(n,o,r);e.type==="click"?(e.pointerType==="touch"&&n.one.drawable&&An(n,[o,r],!n.states[o*n.columns+r]),be(t,n),t.set({pair:[o,r],said:i})):te(s.parentElement.nextElementSibling,i)}function xa(t,e,n){let[s,o]=ge(e,n);s===void 0||!n.one.drawable||e.button||e.pointerType==="touch"||(n.stroke={allow:!n.states[s*n.columns+o]},vn(t,e,n))}function An(t,[e,n],s){t.one.drawable.unwritten&&n>e||(t.states[e*t.columns+n]=s?2:0,t.drawn=!0)}function be(t,e){e.stroke=null,e.drawn&&(e.drawn=!1,Jt(t,e.one.drawable.kind,ba(e)))}function ka(t){return u`<p class="legend">
<i class="allowed"></i><span>${t?"all allowed":"may look"}</span>
${t?u`<i class="allowed some"></i><span>some allowed</span>`:p}
<i class="masked"></i><span>${t?"none allowed":"may not look"}</span>
</p>`}function va(t){return u`<h3>How it grows with the length</h3>
${C("Pairs by length",u`<table data-growth>
${j(...ua)}
<tbody>
${t.growth.map(({length:e,pairs:n,of:s,computed:o,backend:r},i)=>{let a=i===0&&!t.drawable;return u`<tr>
<th scope="row">${pe(e)}${a?" (shown)":""}</th>
<td>${pe(n)}</td>
<td>${Mn(n,s)}</td>
<td>${o===null?"\u2014":Mn(o,1)}</td>
<td>${r}</td>
<td>${Ma(n/(s/(a?t.k_len:e)))} keys</td>
</tr>`})}
</tbody>
</table>`)}
<p class="hint">
Computed here: the share of all pairs that the backend computes which regard chooses on this
machine's CPU for heads of 64 numbers; short rows are computed in whole blocks. Where allowed
pairs grow as fast as the length, attention takes linear time.
</p>`}function Aa(t){let{one:e,rows:n}=t,s=Array.from({length:Math.min(n,xn)},(o,r)=>r);return u`${C("Queries as a table",u`<table>
<thead>
<tr>
<th scope="col">${e.tile>1?"Queries from":"Query"}</th>
${e.rows.length?u`<th scope="col">Word</th>`:p}
<th scope="col">${e.tile>1?"Tiles":"Keys"}</th>
<th scope="col">Which</th>
</tr>
</thead>
<tbody>
${s.map(o=>{let{count:r,named:i}=Ao(t,o);return u`<tr>
<td>${o*e.tile}</td>
${e.rows.length?u`<th scope="row"><bdi>${e.rows[o]}</bdi></th>`:p}
<td>${r}</td>
<td>${i||"none"}</td>
</tr>`})}
</tbody>
</table>`)}
${n>xn?u`<p class="hint">The first ${xn} of ${n}.</p>`:p}`}function pe(t){return t.toLocaleString("en")}function Ma(t){return t.toLocaleString("en",{maximumFractionDigits:1})}function Mn(t,e){let n=100*t/e;return`${n>=.1||n===0?n.toFixed(1):n.toPrecision(2)} %`}var ye=class{constructor({model:e},n=document){let s=a=>n.getElementById(a).textContent,[o,r]=[s("regard-model"),s("regard-tensors")],i=this.waiting=new Map;this.model=e,this.words=JSON.parse(o).words??[],this.worker=window.regardWorker,this.worker.onmessage=({data:{id:a,answer:l,error:c}})=>{let{done:d,fail:h}=i.get(a);i.delete(a),c===void 0?d(l):h(new Error(c))},this.ready=this.#t("load",{text:o,packed:r,digest:e.digest}),this.ready.catch(()=>{}),this.last=0}#t(e,n){return new Promise((s,o)=>{let r=this.last=(this.last??0)+1;this.waiting.set(r,{done:s,fail:o}),this.worker.postMessage({...n,id:r,ask:e})})}async ask(e,n){return await this.ready,this.#t(e,n)}async run(e){let{target:n,probabilities:s,text:o,unknown:r,attention:i}=await this.ask("run",e),a=([c,...d],h)=>Array.from({length:c},(f,m)=>{let w=h.subarray(m*h.length/c,(m+1)*h.length/c);return d.length?a(d,w):w[0]}),l=Object.entries(i).map(([c,{shape:d,weights:h}])=>[c,a(d,h)]);return{target:n,probabilities:s,text:o,unknown:r,attention:Object.fromEntries(l)}}async play(e,n){let{changed:s,...o}=Qt(n);this.plain?.given.source!==o.source&&(this.plain=new rt(e,o,await this.ask("run",o)));let{plain:r}=this;if(!Object.keys(s).length)return r;let i={...o,...s},a=r.answer.follows===void 0?r.answer.ids.target:[r.answer.follows];return new rt(e,i,await this.ask("run",{...i,against:a}),r)}};var xe={erase:{title:"Erasure",says:"Each word is erased in turn. A positive number is how much the model's preference for the word falls."},gradients:{title:"Integrated gradients",says:"The preference for the word is divided among the words that were read. Negative numbers speak against it."},attention:{title:"Raw attention",says:"Where all heads look on average while the word is written. It does not say what the model uses."},rollout:{title:"Attention rollout",says:"Attention multiplied through all layers. A weak lens: it ignores what the layers compute."}},Sa=2;function _o(t){let{header:e}=t.source,n=e.texts[e.written],s=h=>e.explained[h]||t.engine&&n[h]!=="<begin>"&&n[h]!=="<end>",o=s(t.state.place??e.chosen)?t.state.place??e.chosen:e.chosen,r=h=>t.set({place:h,row:h,said:Ta(e.explained[h])}),i=e.explained[o];i||yt(t);let a=u`<h2>What does this word depend on?</h2>
${e.texts.target?p:u` <p class="hint">Choose a word:</p>
<div class="words" role="group" aria-label="Words to explain">
${n.map((h,f)=>s(f)?u`<button
class="word"
aria-pressed=${f===Number(o)?"true":"false"}
@click=${()=>r(f)}
>
<bdi>${h}</bdi>
</button>`:u`<span class="word plain"><bdi>${h}</bdi></span>`)}
</div>`}`;if(!i?.length)return u`${a}
<p class="hint" role="status">
${i?"Nothing was read before this word.":"Computing what it depends on\u2026"}
</p>`;let l=i.find(h=>h.lens===(t.state.lens??"erase"))??i[0],c=i.find(h=>h.lens==="attention"),d=c&&c!==l?So(t,c,u`<h3>${xe.attention.title}</h3>`):p;return u`${a}
<p class="question">
Why <strong><bdi>${l.word}</bdi></strong> rather than ${_a(l.others)}? Log odds
${l.log_odds.toFixed(2)}, probability ${l.probability.toFixed(3)} among these.
</p>
<div class="columns">
${So(t,l,u`<h3>By a lens</h3>
${M("Lens",i.map(h=>[h.lens,xe[h.lens].title]),l.lens,h=>t.set({lens:h}))}`)}
${d}
</div>
<p class="hint">
The words that <bdi>${l.word}</bdi> is compared with are those that the model found most
probable beside it, unless others were asked for. “<bdi>&lt;begin&gt;</bdi>” and
“<bdi>&lt;end&gt;</bdi>” are never erased.
</p> `}function _a(t){return t.map((e,n)=>u`${n?n===t.length-1?" or ":", ":""}<bdi>${e}</bdi>`)}var Ta=t=>t?.length?To(t[0]):"";function To(t){let{title:e}=xe[t.lens],n=i=>T(i.map(([,a])=>a),Sa).filter(a=>i[a][1]>0).map(a=>`\u201C${i[a][0]}\u201D (${Sn(t,i[a][1])})`).join(", then ")||"none of these words";if(t.lens!=="attention"&&t.lens!=="rollout")return`${e}: \u201C${t.word}\u201D depends most on ${n([...t.source,...t.written])}.`;let s=[[t.source,"in the source"],[t.written,"in what was written"]].filter(([i])=>i.length),o=s.map(([i,a])=>`${s.length>1?`${a} `:""}at ${n(i)}`).join("; "),r=s.length>1?" The weights of each side sum to 1.":"";return`${e}: \u201C${t.word}\u201D looks most ${o}.${r}`}function Sn(t,e){return t.lens==="attention"||t.lens==="rollout"?e.toFixed(2):`${e<0?"\u2212":"+"}${Math.abs(e).toFixed(2)}`}function So(t,e,n){let s=Math.max(...[...e.source,...e.written].map(([,r])=>Math.abs(r)),0),o=[["In the source",e.source],["In what was already written",e.written]];return u`<section class="panel" data-lens=${e.lens}>
<div class="bar">${n}</div>
<p class="summary">${To(e)}</p>
${o.map(([r,i])=>i.length?u`<h4>${r}</h4>
<div class="words">
${i.map(([a,l])=>Oa(t,e,a,l,s))}
</div>`:p)}
<p class="hint">${xe[e.lens].says} <span class="faint">${e.cost}.</span></p>
</section>`}function Oa(t,e,n,s,o){let i=e.lens==="attention"||e.lens==="rollout"?Et(o?s/o:0):Gt(s,o),a=`${n}: ${Sn(e,s)}`;if(e.lens==="erase"){let l=1/(1+Math.exp(-(e.log_odds-s)));a+=`; without it the probability of ${e.word} is ${l.toFixed(3)} instead of ${e.probability.toFixed(3)}`}return u`<span class="scored" title=${a}
><span class="word" .style=${i}><bdi>${n}</bdi></span>
<small>${Sn(e,s)}</small></span
>`}function Tn({state:{motion:t}}){return t?t==="on":!matchMedia("(prefers-reduced-motion: reduce)").matches}function Ft({indices:t={}},{rows:e,columns:n}){let s=o=>o?Math.min(t[_n(o)]??0,o.size-1):0;return s(e)*n.size+s(n)}var _n=({unit:t,labels:e,size:n})=>`${t} ${e??n}`;function ke(t,{rows:e,columns:n},s){t.indices={...t.indices,[_n(n)]:s%n.size,...e?{[_n(e)]:Math.floor(s/n.size)}:{}},t.draw()}function Oo(t,e,n){let s=e.getBoundingClientRect(),{flight:o}=t;if(t.flight={step:n,box:s,text:e.textContent},!o||o.step===n||!Tn(t))return;let r=document.createElement("span");r.className="flying",r.textContent=o.text,e.closest(".step").append(r);let i=({left:a,top:l})=>({transform:`translate(${a}px, ${l}px)`});r.animate([i(o.box),i(s)],{duration:700,easing:"ease-in-out"}).finished.then(()=>r.remove(),()=>r.remove())}var Ea="http://www.w3.org/1998/Math/MathML",Ca=new Set(["math","mrow","mi","mn","mo","mtext","msub","msup","msubsup","mfrac","msqrt"]);function On([t,...e]){let n=document.createElementNS(Ea,Ca.has(t)?t:"mtext");return t==="math"&&n.setAttribute("display","block"),t==="mo"&&"()[]|".includes(e[0])&&n.setAttribute("stretchy","false"),n.append(...e.map(s=>Array.isArray(s)?On(s):s)),n}var Y=16,Eo=1024,En=20;function No(t,e,n,s){if(s.words)return u`<ol class="words">
${s.words.map($=>u`<li class="word"><bdi>${$}</bdi></li>`)}
</ol>`;let{values:o,rows:r,columns:i,only:a,before:l}=s,c=Ft(t,s),d=$=>$.labels===null?null:e.record.labels[$.labels],h=a===null?p:u`<p class="hint">
Too many numbers to store for every word; these are those of the word that was followed
when the page was made.
</p>`;if(!r&&d(i)&&i.size>2*En)return u`${h}${Na(n,s,d(i))}`;let f=r?Math.min(i.size,Math.max(Math.floor(Eo/r.size),1)):Math.min(i.size,Eo),m=i.size-f,w=r?Array.from({length:r.size},($,y)=>({head:Co(r,d(r),y),from:y*i.size,to:y*i.size+f})):d(i)?[{head:"",from:0,to:f}]:Array.from({length:Math.ceil(f/Y)},($,y)=>({head:`${y*Y} to ${Math.min((y+1)*Y,f)-1}`,from:y*Y,to:Math.min((y+1)*Y,f)})),g=r||d(i);return u`${h}
${C("Numbers of the step",u`<table class="numbers">
<thead>
<tr>
<td></td>
${Array.from({length:g?f:Math.min(Y,f)},($,y)=>u`<th scope="col">
${g?u`<bdi>${Co(i,d(i),y)}</bdi>`:`+${y}`}
</th>`)}
</tr>
</thead>
<tbody>
${w.map(({head:$,from:y,to:k})=>u`<tr>
${$?u`<th scope="row"><bdi>${$}</bdi></th>`:u`<td></td>`}
${Array.from(o.subarray(y,k),(b,x)=>y+x===c?u`<td
class="followed"
.style=${Cn(n,b,s.most)}
title=${String(b)}
${_(v=>Oo(t,v,n))}
>
${Rt(b)}
</td>`:u`<td
.style=${Cn(n,b,s.most)}
title=${String(b)}
@click=${()=>ke(t,s,y+x)}
>
${Rt(b)}
</td>`)}
</tr>`)}
</tbody>
</table>`)}
<p class="hint" data-followed>
The number
followed${l?u` was ${Rt(l.value)} in “${l.title}”, and`:""} is
${Rt(o[c])}. Press another to follow it, or Shift and an arrow.
</p>
${m?u`<p class="hint">… ${m} more ${i.unit} in each row.</p>`:p}`}function Co(t,e,n){return e?e[n]:String(n)}function Cn(t,e,n){return e===-1/0?"":t.scale==="weights"?Et(e):t.scale==="signed"?Gt(e,n):""}function Rt(t){if(t===-1/0)return"\u2212\u221E";if(Number.isInteger(t)&&Math.abs(t)<1e6)return String(t).replace("-","\u2212");let e=Math.abs(t)<1e3?t.toFixed(3):t.toPrecision(3);return(Number(e)===0?e.replace("-",""):e).replace("-","\u2212")}function Na(t,{values:e,most:n},s){let o=T(e,En);return u`${C("The largest numbers of the step",u`<table class="numbers">
${j("Id","Sub-word","Number")}
<tbody>
${o.map(r=>u`<tr>
<td>${r}</td>
<th scope="row"><bdi>${s[r]}</bdi></th>
<td .style=${Cn(t,e[r],n)} title=${String(e[r])}>
${Rt(e[r])}
</td>
</tr>`)}
</tbody>
</table>`)}
<p class="hint">The ${En} largest of ${e.length.toLocaleString("en")}.</p>`}var La=1800,Nn=30,Wa=/^Words$|with positions|queries|keys|values|: scores|weights|context vectors|output|next word|Distribution|likeliest/,ja=/layer [1-9]/i;function Lo(t){let e=Fa(t);if(!e)return u`<h2>Step by step</h2>
<p class="hint" role="status">${t.walkFailed??"Computing every step\u2026"}</p>`;let{steps:n,note:s}=e.record;if(!n.length)return u`<h2>Step by step</h2>
<p class="hint">${s}</p>`;let o=Math.min(t.state.step,n.length-1),r=n[o],i=Ln(t,e),a=i.indexOf(o),l=[...new Set(i.map(m=>n[m].section))],c=Ra(t,e.record),d=`${o}/${c.join()}`;(t.stepShown?.key!==d||t.stepShown.walk!==e)&&Ha(t,e,r,c,d);let h=t.stepShown?.key===d&&t.stepShown.walk===e?t.stepShown:null,f=t.engine&&t.source.header.walk&&(t.source.base||t.source.given.source!==t.source.header.model.text);return u`
<h2>Step by step</h2>
${f?Ia(t.source.header.model.text):p}
<div class="bar">
${M("Part",l.map((m,w)=>[w,m]),l.indexOf(r.section),m=>Ht(t,e,i.find(w=>n[w].section===l[m])))}
${Wn(e.record).map((m,w)=>M(w?"and of the source":"Word followed",e.record.labels[m].map((g,$)=>[$,g]),c[w],g=>t.set({followed:Object.assign([...c],{[w]:Number(g)})})))}
<button @click=${()=>Ht(t,e,i[a-1])} ?disabled=${a===0}>
Previous step
</button>
<button
@click=${()=>Ht(t,e,i[a+1])}
?disabled=${a===i.length-1}
>
Next step
</button>
<button
aria-pressed=${String(!!t.runs)}
@click=${()=>Da(t,e)}
?disabled=${a===i.length-1}
>
${t.runs?"Stop":"Play the steps"}
</button>
<label class="choice"
><input
type="checkbox"
.checked=${Tn(t)}
@change=${m=>t.set({motion:m.target.checked?"on":"off"})}
/><span>Motion</span></label
>
<span class="badge">step ${a+1} of ${i.length}</span>
${i.length<n.length?u`<button @click=${()=>t.set({whole:"yes"})}>
Walk all ${n.length} steps
</button>`:p}
</div>
<section
class="panel step"
tabindex="0"
aria-roledescription="step"
aria-label="Left and right arrows change the step. ${Wo(r)}"
@keydown=${m=>Ua(t,m,e,i,a)}
>
<h3>${r.title}</h3>
${r.says?u`<p>${r.says}</p>`:p} ${r.formula?Pa(r):p}
<pre><code>${r.line}</code></pre>
<p class="hint" data-shape>${qa(r)}</p>
${h?No(t,e,r,h):u`<p class="hint">Unpacking…</p>`}
</section>
<p class="hint">
${s} ${e.record.checks} results were compared with the model's own; the largest
difference is ${e.record.difference.toExponential(1)}. Numbers are computed with 64 bits
and stored with 32. Sentences that name a word are about
“<bdi>${e.record.words[e.record.word]}</bdi>”.
</p>
`}function Ln({state:t},{record:{steps:e}}){let n=e.map((i,a)=>a),s=n.filter(i=>i===0||Wa.test(e[i].title)&&!ja.test(e[i].section)),o=s.length>Nn?[...s.slice(0,Nn-3),...s.slice(-3)]:s;return t.whole||n.length<=Nn||!o.includes(t.step)?n:o}function Ia(t){return u`<p class="hint">
These steps were stored when the page was made, for “<bdi>${t}</bdi>” and the model as
trained.
</p>`}function Pa({formula:t}){let e=_(n=>n.replaceChildren(On(t)));return u`<div class="formula" ${e}></div>`}function Fa(t){let{source:e}=t;if(e.header.walk)return e.walk??={record:e.header.walk,source:e};if(e.walk||t.walkAsked===e)return e.walk;t.walkAsked=e,t.walkFailed=void 0,rn("walk",e.given?.source??e.header.live.text).then(n=>{e.walk={record:n.walk,source:new B({},n.arrays)},t.draw()},n=>{t.walkFailed=n.message,t.draw()})}function Wn({steps:t,labels:e,words:n}){let s=e.findIndex(r=>r.length===n.length&&r.every((i,a)=>i===n[a])),o=new Set(s<0?[]:[s]);for(let{axes:r}of t)for(let i of r)i.unit==="words"&&i.chosen!==null&&i.labels!==null&&o.add(i.labels);return[...o]}function Ra(t,e){return Wn(e).map((n,s)=>{let o=s===0?e.word:e.steps.flatMap(({axes:i})=>i).find(i=>i.labels===n&&i.chosen!==null).chosen,r=t.state.followed?.[s]??o;return Math.min(r,e.labels[n].length-1)})}async function Ha(t,e,n,s,o){if(t.stepAsked===o&&t.stepFor===e)return;if(Object.assign(t,{stepAsked:o,stepFor:e}),n.words){Object.assign(t,{stepShown:{key:o,walk:e,words:n.words}}),t.draw();return}let r=await e.source.bytes(n.place),i=new Float32Array(r.buffer),a=Wn(e.record),{axes:l}=n,c=null,d=i;if(n.only!==void 0)c=n.only,l=l.filter(($,y)=>y!==c);else if(l.length>1){let $=l.findIndex(({chosen:y})=>y!==null);if($>=0){let y=s[Math.max(a.indexOf(l[$].labels),0)];d=Ba(i,l.map(({size:k})=>k),$,Math.min(y,l[$].size-1)),l=l.filter((k,b)=>b!==$)}}let h=l[l.length-1],f=0;for(let $ of i)Number.isFinite($)&&(f=Math.max(f,Math.abs($)));let m=l.length>1?l[l.length-2]:null,{stepShown:w}=t,g=w?.values&&w.walk===e&&w.step!==n?{value:w.values[Ft(t,w)],title:w.step.title}:null;t.stepShown={key:o,walk:e,step:n,values:d,rows:m,columns:h,most:f,only:c,before:g},t.draw()}function Ba(t,e,n,s){let o=e.slice(n+1).reduce((a,l)=>a*l,1),r=e.slice(0,n).reduce((a,l)=>a*l,1),i=new Float32Array(r*o);for(let a=0;a<r;a+=1){let l=(a*e[n]+s)*o;i.set(t.subarray(l,l+o),a*o)}return i}function Da(t,e){let n=()=>{let s=Ln(t,e).find(r=>r>t.state.step),o=t.state.view!=="walk"||s===void 0;t.runs=o?null:setTimeout(n,La),o?t.draw():Ht(t,e,s)};return t.runs?(clearTimeout(t.runs),t.runs=null,t.draw()):n()}function qa(t){let e=t.axes.map(({size:n,unit:s})=>`${n.toLocaleString("en")} ${n===1?s.replace(/s$/,""):s}`).join(" \xD7 ");return t.words||t.axes.length<2?e:`${e}; shown for the followed word`}function Wo(t){return`${t.section}: ${t.title}.`}function Ht(t,e,n){let s=Ln(t,e),o=`Step ${s.indexOf(n)+1} of ${s.length}. `;t.set({step:n,said:o+Wo(e.record.steps[n])})}function Ua(t,e,n,s,o){if(e.target!==e.currentTarget)return;let{steps:r}=n.record,i=t.stepShown,a={ArrowRight:1,ArrowLeft:-1,ArrowDown:i?.rows?i.columns.size:Y,ArrowUp:i?.rows?-i.columns.size:-Y}[e.key];if(e.shiftKey&&a&&i?.values)return e.preventDefault(),ke(t,i,Math.min(Math.max(Ft(t,i)+a,0),i.values.length-1));let l=d=>{let h=f=>r[s[f]].section;for(let f=o+d;f>=0&&f<s.length;f+=d)if(h(f)!==h(o))return d>0?f:s.findIndex((m,w)=>h(w)===h(f));return d>0?s.length-1:0},c={ArrowRight:Math.min(o+1,s.length-1),ArrowLeft:Math.max(o-1,0),Home:0,End:s.length-1,PageDown:l(1),PageUp:l(-1)}[e.key];if(c!==void 0)return e.preventDefault(),Ht(t,n,s[c])}var za=({written:t,model:e,explained:n})=>!!(t&&(e||Object.keys(n).length)),ve=t=>t.attentions.length>0,wt={reader:{title:"Reader",draw:_o,fits:za},heads:{title:"Heads",draw:Gs,fits:ve},map:{title:"Heat map",draw:so,fits:ve},links:{title:"Links",draw:ao,fits:ve},change:{title:"What if",draw:uo,fits:t=>!!t.changes},pattern:{title:"Pattern",draw:yo,fits:t=>t.patterns.length>0},walk:{title:"Walk-through",draw:Lo,fits:t=>!!(t.walk??t.live?.walk)},compare:{title:"Compare",draw:fs,fits:ve}},Io=["view","kind","layer","head","row","place","pick","by","scale","theme","share","sort","pattern","panel","step","whole","motion","lens","changed","next","column","pair","followed","other","against","text",...Object.keys(F)],Ae=class{constructor(e,n,s,o=null){Object.assign(this,{element:e,source:n,engine:o,stored:n.stored,past:[],hot:null}),this.origin=n.base??(o?n:void 0),this.state={view:"reader",kind:0,layer:0,head:"mean",row:jo(n.header),pick:0,by:"depends",scale:"linear",theme:"system",share:.8,sort:"layer",said:"",busy:"",pattern:0,panel:0,step:0},this.state.layer=(n.header.attentions[0]?.shape[0]??1)-1,Object.assign(this.state,o?{text:n.given.source,...F}:{},s),this.#n()}get attention(){return this.source.header.attentions[this.state.kind]}get words(){return this.source.words(this.attention)}set(e){return Object.assign(this.state,e),this.#n(),this.#s(),this.draw()}replace(e){let n=this.source,s=this.engine&&e.given.source===n.given.source,o=s?this.follows??"words":this.follows;if(this.source=e,this.follows=null,!s)for(let r of["changed","next","pair","followed","column"])delete this.state[r];if(o)this.#t(n,o);else{delete this.state.place,Object.assign(this,{origin:e.base??(this.engine?e:void 0),past:[]});let r=this.engine?this.state.kind:0;Object.assign(this.state,{kind:r,row:jo(e.header),pick:0})}return this.set({said:e.header.title})}#t(e,n){let{target:s}=this.source.header.texts;if(!s)return;let o=n==="words"?ot(this.#e(e),e.header.texts.target,s):n;Object.assign(this.state,{place:o,row:o})}#e({header:e}){return Math.min(Number(this.state.place??e.chosen),e.texts.target.length-1)}async draw(){let{kind:e,layer:n,head:s}=this.state,o=this.turn=(this.turn??0)+1,r=this.attention?await this.source.head(e,n,s):null;o===this.turn&&(document.documentElement.dataset.theme=this.state.theme,this.weights=r,We(Va(this,r),this.element),this.drawFirst(),this.element.dataset.ready="yes")}drawFirst(){We(Us(this),this.element.querySelector(".first")),Ps(this.element)}#n(){let{state:e}=this,{header:n}=this.source,s=(l,c)=>Math.min(Math.max(Math.trunc(Number(l))||0,0),Math.max(c-1,0));(!Object.hasOwn(wt,e.view)||!wt[e.view].fits(n))&&(e.view=Object.keys(wt).find(l=>wt[l].fits(n))),e.kind=s(e.kind,n.attentions.length);let[o,r,i,a]=this.attention?.shape??[1,1,1,1];e.layer=s(e.layer,o),e.head=r===1?0:e.head==="mean"?"mean":s(e.head,r),e.row=s(e.row,i);for(let[l,c]of Object.entries({column:a,changed:1/0,next:1/0}))e[l]!==void 0&&(e[l]=s(e[l],c));for(let l of["pair","followed","other"])typeof e[l]=="string"&&(e[l]=e[l].split(",").map(c=>c==="mean"?c:s(c,1/0)));e.pick=s(e.pick,3),e.share=Math.min(Math.max(Number(e.share)||.8,.05),1),e.pattern=s(e.pattern,n.patterns.length),e.step=Math.max(Math.trunc(Number(e.step))||0,0),e.panel=s(e.panel,n.patterns[e.pattern]?.panels.length??1),Object.hasOwn(Ut,e.scale)||(e.scale="linear"),["system","light","dark"].includes(e.theme)||(e.theme="system")}#s(){let e=Object.fromEntries(Io.filter(s=>this.state[s]!==void 0).map(s=>[s,String(this.state[s])]));parent!==window&&parent.postMessage({regard:e},"*");let n=new URLSearchParams(e);try{history.replaceState(null,"",`#${n}`)}catch{}}};function jo({written:t,chosen:e,attentions:[n],texts:s}){return t||!n?e:le(s[n.rows])}function Po(t){return Fo(Object.fromEntries(new URLSearchParams(t.slice(1))))}function Fo(t){return Object.fromEntries(Io.filter(e=>Object.hasOwn(t,e)).map(e=>[e,String(t[e])]))}function Va(t,e){let{state:n,source:s}=t,o=Object.entries(wt).filter(([,r])=>r.fits(s.header));return u`
<main>
<div class="first"></div>
<nav role="tablist" aria-label="Views" @keydown=${ue}>
${o.map(([r,i])=>u`<button
role="tab"
aria-selected=${String(r===n.view)}
aria-controls="view"
@click=${()=>t.set({view:r})}
>
${i.title}
</button>`)}
</nav>
<div id="view" role="tabpanel" aria-label=${wt[n.view].title}>
${wt[n.view].draw(t,e)}
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
`}async function Ka(t,e){t.textContent="Unpacking the model\u2026";let n=new ye(e.header),s=Po(location.hash),o={text:e.header.model.text,...F};window.regard={ready:n.ready,run:l=>n.run(l),engine:n,shown:[],coloured:[]};let[r,i]=[null,""];try{r=await n.play(e,{...o,...s})}catch(l){i=l.message;for(let c of Object.keys(o))delete s[c];r=await n.play(e,o)}(await n.ready).checked||(i||="This address is not secure (https), so the browser could not check the hash of the model."),t.replaceChildren();let a=new Ae(t,r,s,n);return await a.set({busy:i}),window.regard.opened=performance.now(),a}async function Ga(t){let e=as();if(e.header.model)return Ka(t,e);t.replaceChildren();let n=new Ae(t,e,Po(location.hash));return await n.draw(),n}var Bt=document.getElementById("regard-explorer");Bt&&Ga(Bt).then(t=>{addEventListener("resize",()=>t.draw()),addEventListener("message",({source:e,data:n})=>{e===parent&&parent!==window&&n?.regard instanceof Object&&t.set(Fo(n.regard))})},t=>{Bt.textContent=t.message,Bt.setAttribute("role","alert"),Bt.dataset.ready="failed"});export{Ae as App};
/*! Bundled license information:

lit-html/lit-html.js:
lit-html/directive.js:
  (**
   * @license
   * Copyright 2017 Google LLC
   * SPDX-License-Identifier: BSD-3-Clause
   *)
*/
