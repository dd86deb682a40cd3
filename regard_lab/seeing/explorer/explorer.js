/* sources cbafa4f37956b688df11d4a3fec78393be92b9006a5cca0cfbfdb34cc7618df4 */
var Xt=globalThis,De=e=>e,xt=Xt.trustedTypes,Be=xt?xt.createPolicy("lit-html",{createHTML:e=>e}):void 0,Zt="$lit$",W=`lit$${Math.random().toFixed(9).slice(2)}$`,te="?"+W,vn=`<${te}>`,G=document,lt=()=>G.createComment(""),ct=e=>e===null||typeof e!="object"&&typeof e!="function",ee=Array.isArray,Ge=e=>ee(e)||typeof e?.[Symbol.iterator]=="function",Yt=`[ 	
\f\r]`,it=/<(?:(!--|\/[^a-zA-Z])|(\/?[a-zA-Z][^>\s]*)|(\/?$))/g,Ue=/-->/g,qe=/>/g,z=RegExp(`>|${Yt}(?:([^\\s"'>=/]+)(${Yt}*=${Yt}*(?:[^ 	
\f\r"'\`<>=]|("|')|))|$)`,"g"),Ve=/'/g,ze=/"/g,Qe=/^(?:script|style|textarea|title)$/i,se=e=>(t,...s)=>({_$litType$:e,strings:t,values:s}),f=se(1),ar=se(2),ir=se(3),ht=Symbol.for("lit-noChange"),y=Symbol.for("lit-nothing"),Ke=new WeakMap,K=G.createTreeWalker(G,129);function Je(e,t){if(!ee(e)||!e.hasOwnProperty("raw"))throw Error("invalid template strings array");return Be!==void 0?Be.createHTML(t):t}var Ye=(e,t)=>{let s=e.length-1,n=[],o,r=t===2?"<svg>":t===3?"<math>":"",a=it;for(let i=0;i<s;i++){let l=e[i],c,d,h=-1,u=0;for(;u<l.length&&(a.lastIndex=u,d=a.exec(l),d!==null);)u=a.lastIndex,a===it?d[1]==="!--"?a=Ue:d[1]!==void 0?a=qe:d[2]!==void 0?(Qe.test(d[2])&&(o=RegExp("</"+d[2],"g")),a=z):d[3]!==void 0&&(a=z):a===z?d[0]===">"?(a=o??it,h=-1):d[1]===void 0?h=-2:(h=a.lastIndex-d[2].length,c=d[1],a=d[3]===void 0?z:d[3]==='"'?ze:Ve):a===ze||a===Ve?a=z:a===Ue||a===qe?a=it:(a=z,o=void 0);let m=a===z&&e[i+1].startsWith("/>")?" ":"";r+=a===it?l+vn:h>=0?(n.push(c),l.slice(0,h)+Zt+l.slice(h)+W+m):l+W+(h===-2?i:m)}return[Je(e,r+(e[s]||"<?>")+(t===2?"</svg>":t===3?"</math>":"")),n]},dt=class e{constructor({strings:t,_$litType$:s},n){let o;this.parts=[];let r=0,a=0,i=t.length-1,l=this.parts,[c,d]=Ye(t,s);if(this.el=e.createElement(c,n),K.currentNode=this.el.content,s===2||s===3){let h=this.el.content.firstChild;h.replaceWith(...h.childNodes)}for(;(o=K.nextNode())!==null&&l.length<i;){if(o.nodeType===1){if(o.hasAttributes())for(let h of o.getAttributeNames())if(h.endsWith(Zt)){let u=d[a++],m=o.getAttribute(h).split(W),w=/([.?@])?(.*)/.exec(u);l.push({type:1,index:r,name:w[2],strings:m,ctor:w[1]==="."?vt:w[1]==="?"?At:w[1]==="@"?Mt:J}),o.removeAttribute(h)}else h.startsWith(W)&&(l.push({type:6,index:r}),o.removeAttribute(h));if(Qe.test(o.tagName)){let h=o.textContent.split(W),u=h.length-1;if(u>0){o.textContent=xt?xt.emptyScript:"";for(let m=0;m<u;m++)o.append(h[m],lt()),K.nextNode(),l.push({type:2,index:++r});o.append(h[u],lt())}}}else if(o.nodeType===8)if(o.data===te)l.push({type:2,index:r});else{let h=-1;for(;(h=o.data.indexOf(W,h+1))!==-1;)l.push({type:7,index:r}),h+=W.length-1}r++}}static createElement(t,s){let n=G.createElement("template");return n.innerHTML=t,n}};function Q(e,t,s=e,n){if(t===ht)return t;let o=n!==void 0?s._$Co?.[n]:s._$Cl,r=ct(t)?void 0:t._$litDirective$;return o?.constructor!==r&&(o?._$AO?.(!1),r===void 0?o=void 0:(o=new r(e),o._$AT(e,s,n)),n!==void 0?(s._$Co??=[])[n]=o:s._$Cl=o),o!==void 0&&(t=Q(e,o._$AS(e,t.values),o,n)),t}var kt=class{constructor(t,s){this._$AV=[],this._$AN=void 0,this._$AD=t,this._$AM=s}get parentNode(){return this._$AM.parentNode}get _$AU(){return this._$AM._$AU}u(t){let{el:{content:s},parts:n}=this._$AD,o=(t?.creationScope??G).importNode(s,!0);K.currentNode=o;let r=K.nextNode(),a=0,i=0,l=n[0];for(;l!==void 0;){if(a===l.index){let c;l.type===2?c=new et(r,r.nextSibling,this,t):l.type===1?c=new l.ctor(r,l.name,l.strings,this,t):l.type===6&&(c=new _t(r,this,t)),this._$AV.push(c),l=n[++i]}a!==l?.index&&(r=K.nextNode(),a++)}return K.currentNode=G,o}p(t){let s=0;for(let n of this._$AV)n!==void 0&&(n.strings!==void 0?(n._$AI(t,n,s),s+=n.strings.length-2):n._$AI(t[s])),s++}},et=class e{get _$AU(){return this._$AM?._$AU??this._$Cv}constructor(t,s,n,o){this.type=2,this._$AH=y,this._$AN=void 0,this._$AA=t,this._$AB=s,this._$AM=n,this.options=o,this._$Cv=o?.isConnected??!0}get parentNode(){let t=this._$AA.parentNode,s=this._$AM;return s!==void 0&&t?.nodeType===11&&(t=s.parentNode),t}get startNode(){return this._$AA}get endNode(){return this._$AB}_$AI(t,s=this){t=Q(this,t,s),ct(t)?t===y||t==null||t===""?(this._$AH!==y&&this._$AR(),this._$AH=y):t!==this._$AH&&t!==ht&&this._(t):t._$litType$!==void 0?this.$(t):t.nodeType!==void 0?this.T(t):Ge(t)?this.k(t):this._(t)}O(t){return this._$AA.parentNode.insertBefore(t,this._$AB)}T(t){this._$AH!==t&&(this._$AR(),this._$AH=this.O(t))}_(t){this._$AH!==y&&ct(this._$AH)?this._$AA.nextSibling.data=t:this.T(G.createTextNode(t)),this._$AH=t}$(t){let{values:s,_$litType$:n}=t,o=typeof n=="number"?this._$AC(t):(n.el===void 0&&(n.el=dt.createElement(Je(n.h,n.h[0]),this.options)),n);if(this._$AH?._$AD===o)this._$AH.p(s);else{let r=new kt(o,this),a=r.u(this.options);r.p(s),this.T(a),this._$AH=r}}_$AC(t){let s=Ke.get(t.strings);return s===void 0&&Ke.set(t.strings,s=new dt(t)),s}k(t){ee(this._$AH)||(this._$AH=[],this._$AR());let s=this._$AH,n,o=0;for(let r of t)o===s.length?s.push(n=new e(this.O(lt()),this.O(lt()),this,this.options)):n=s[o],n._$AI(r),o++;o<s.length&&(this._$AR(n&&n._$AB.nextSibling,o),s.length=o)}_$AR(t=this._$AA.nextSibling,s){for(this._$AP?.(!1,!0,s);t!==this._$AB;){let n=De(t).nextSibling;De(t).remove(),t=n}}setConnected(t){this._$AM===void 0&&(this._$Cv=t,this._$AP?.(t))}},J=class{get tagName(){return this.element.tagName}get _$AU(){return this._$AM._$AU}constructor(t,s,n,o,r){this.type=1,this._$AH=y,this._$AN=void 0,this.element=t,this.name=s,this._$AM=o,this.options=r,n.length>2||n[0]!==""||n[1]!==""?(this._$AH=Array(n.length-1).fill(new String),this.strings=n):this._$AH=y}_$AI(t,s=this,n,o){let r=this.strings,a=!1;if(r===void 0)t=Q(this,t,s,0),a=!ct(t)||t!==this._$AH&&t!==ht,a&&(this._$AH=t);else{let i=t,l,c;for(t=r[0],l=0;l<r.length-1;l++)c=Q(this,i[n+l],s,l),c===ht&&(c=this._$AH[l]),a||=!ct(c)||c!==this._$AH[l],c===y?t=y:t!==y&&(t+=(c??"")+r[l+1]),this._$AH[l]=c}a&&!o&&this.j(t)}j(t){t===y?this.element.removeAttribute(this.name):this.element.setAttribute(this.name,t??"")}},vt=class extends J{constructor(){super(...arguments),this.type=3}j(t){this.element[this.name]=t===y?void 0:t}},At=class extends J{constructor(){super(...arguments),this.type=4}j(t){this.element.toggleAttribute(this.name,!!t&&t!==y)}},Mt=class extends J{constructor(t,s,n,o,r){super(t,s,n,o,r),this.type=5}_$AI(t,s=this){if((t=Q(this,t,s,0)??y)===ht)return;let n=this._$AH,o=t===y&&n!==y||t.capture!==n.capture||t.once!==n.once||t.passive!==n.passive,r=t!==y&&(n===y||o);o&&this.element.removeEventListener(this.name,this,n),r&&this.element.addEventListener(this.name,this,t),this._$AH=t}handleEvent(t){typeof this._$AH=="function"?this._$AH.call(this.options?.host??this.element,t):this._$AH.handleEvent(t)}},_t=class{constructor(t,s,n){this.element=t,this.type=6,this._$AN=void 0,this._$AM=s,this.options=n}get _$AU(){return this._$AM._$AU}_$AI(t){Q(this,t)}},Xe={M:Zt,P:W,A:te,C:1,L:Ye,R:kt,D:Ge,V:Q,I:et,H:J,N:At,U:Mt,B:vt,F:_t},An=Xt.litHtmlPolyfillSupport;An?.(dt,et),(Xt.litHtmlVersions??=[]).push("3.3.3");var Ze=(e,t,s)=>{let n=s?.renderBefore??t,o=n._$litPart$;if(o===void 0){let r=s?.renderBefore??null;n._$litPart$=o=new et(t.insertBefore(lt(),r),r,void 0,s??{})}return o._$AI(e),o};var oe={light:["#ffffff","#cfdff2","#7fabdf","#2c68b4","#0b2a5b"],dark:["#14181f","#1d3252","#2f5c9b","#6ba3e8","#d3e6ff"]},re={light:["#ffffff","#fbd9c9","#ee9a77","#c1452c","#6b1310"],dark:["#14181f","#4a2a22","#96452f","#e4795a","#ffd5c7"]},ts={light:{ink:"#1d2430",faint:"#5b6472",line:"#d5dae2",paper:"#ffffff",panel:"#f6f7f9",accent:"#1a5fb4","on-accent":"#ffffff",unseen:"#e4e4e4"},dark:{ink:"#e7eaf0",faint:"#a4adbb",line:"#3b4350",paper:"#14181f",panel:"#1d232c",accent:"#8ab8ff","on-accent":"#10151c",unseen:"#3a3f47"},both:{followed:"#e8441f",flying:"#b93213"}};var es=ts.both.followed,ss={light:{weight:oe.light,against:re.light},dark:{weight:oe.dark,against:re.dark}};var St={linear:"0 to 1",root:"square root: small weights are visible",largest:"0 to the largest weight of each row"},ns={};function os(){let{theme:e}=document.documentElement.dataset,t=e==="dark"||e!=="light"&&matchMedia("(prefers-color-scheme: dark)").matches?"dark":"light";return ns[t]??=Object.fromEntries(Object.entries(ss[t]).map(([s,n])=>[s,Mn(n)])),ns[t]}function Mn(e){let t=e.map(s=>[1,3,5].map(n=>parseInt(s.slice(n,n+2),16)));return Uint8Array.from({length:768},(s,n)=>{let o=Math.floor(n/3)/255*(e.length-1),r=Math.min(Math.floor(o),e.length-2),[a,i]=[t[r][n%3],t[r+1][n%3]];return a+(i-a)*(o-r)})}function ut(e){return e>=1?255:e>0?Math.floor(e*256):0}function rs(e,t,s){return t==="root"?Math.sqrt(e):t==="largest"?s>0?e/s:0:e}function Tt(){let{weight:e}=os(),t=new Uint32Array(256),s=new Uint8Array(t.buffer);for(let n=0;n<256;n+=1)s.set(e.subarray(3*n,3*n+3),4*n),s[4*n+3]=255;return t}function Et(e){let{weight:t,against:s}=os(),n=3*ut(Math.abs(e));return(e<0?s:t).subarray(n,n+3)}function Ct(e){return`rgb(${Et(e)})`}function st(e,t){return nt(t?e/t:0)}function nt(e){let t=Et(e);return`background:rgb(${t});color:${_n(...t)?"#fff":"#000"}`}function _n(e,t,s){let n=o=>o<=10?o/3294.6:((o/255+.055)/1.055)**2.4;return .2126*n(e)+.7152*n(t)+.0722*n(s)<.179}function _(e,t,s=()=>!0){let n=[];for(let o=0;o<e.length;o+=1){if(n.length===t&&!(e[o]>e[n[t-1]])||!s(o))continue;let r=n.length;for(;r>0&&e[o]>e[n[r-1]];)r-=1;n.splice(r,0,o),n.length>t&&n.pop()}return n}var Sn=48;function is(e=document){let t=JSON.parse(e.getElementById("regard-header").textContent);return new F(t,e.getElementById("regard-arrays").textContent)}var F=class{constructor(t,s){this.header=t,this.arrays=s,this.kept=new Map}async bytes([t,s]){let n=atob(this.arrays.slice(t,t+s)),o=new Uint8Array(n.length);for(let a=0;a<n.length;a+=1)o[a]=n.charCodeAt(a);let r=new Blob([o]).stream().pipeThrough(new DecompressionStream("deflate"));return new Uint8Array(await new Response(r).arrayBuffer())}words(t){let{texts:s}=this.header;return{rows:s[t.rows],columns:s[t.columns]}}head(t,s,n){let o=`${t}/${s}/${n}`,r=this.kept.get(o);return r?this.kept.delete(o):r=n==="mean"?this.#e(t,s):this.#t(t,s,n),this.kept.set(o,r),this.kept.size>Sn&&this.kept.delete(this.kept.keys().next().value),r}async#t(t,s,n){let o=this.header.attentions[t],[,,r,a]=o.shape;if(o.exact){let c=await this.bytes(o.exact[s][n]);return new R(new Float32Array(c.buffer),r,a,!0)}let i=await this.bytes(o.bytes[s][n]),l=new Float32Array(i.length);for(let c=0;c<i.length;c+=1)l[c]=Tn[i[c]];return new R(l,r,a,!1)}async#e(t,s){let n=this.header.attentions[t].shape[1],o=[];for(let a=0;a<n;a+=1)o.push(await this.#t(t,s,a));let r=new Float32Array(o[0].values.length);for(let a of o)for(let i=0;i<r.length;i+=1)r[i]+=a.values[i]/n;return new R(r,o[0].rows,o[0].columns,o[0].exact)}async thumbnails(t){let{shape:s,place:n}=this.header.attentions[t].thumbnails;return{rows:s[0],columns:s[1],bytes:await this.bytes(n)}}},Tn=Float32Array.from({length:256},(e,t)=>(t/255)**2),R=class{constructor(t,s,n,o){Object.assign(this,{values:t,rows:s,columns:n,exact:o})}row(t){return this.values.subarray(t*this.columns,(t+1)*this.columns)}at(t,s){return this.values[t*this.columns+s]}entropy(t){let s=0;for(let n of this.row(t))n>0&&(s-=n*Math.log(n));return s}get received(){return this.sums??=this.#t(),this.sums}#t(){let t=new Float32Array(this.columns);for(let s=0,n=0;s<this.rows;s+=1)for(let o=0;o<this.columns;o+=1,n+=1)t[o]+=this.values[n];return t}links(t,s,n){let o=this.row(t),r=_(o,n),a=0;for(let c of o)a+=c;let i=[],l=0;for(let c of r){if(!(o[c]>0)||l>=s*a-1e-9)break;l+=o[c],i.push({key:c,weight:o[c]})}return{links:i,hidden:Math.max(0,a-l)}}},as=48,Y=class extends F{constructor(t,s,n,o=null){let{header:r,arrays:a}=t,{model:i}=r,l=i.kinds.map(m=>new ae(m,n.attention[m.kind])),{texts:c,text:d,finished:h}=n,u=c.target?`${s.source} \u2192 ${d}`:s.source;super({...r,title:u,texts:c,attentions:l,explained:{},written:i.written,changes:i.follows&&Cn(i,n,o?.answer??n)},a),Object.assign(this,{stored:t,given:s,answer:n,base:o}),this.header.chosen=this.#t(),o&&(Object.assign(this,{second:o}).header.second={said:"the model as trained",header:o.header,matched:En(c,o.answer.texts)}),h===!1&&(this.header.notes=[...r.notes,"The model does not end this text."])}#t(){let{model:t,texts:s}=this.header;if(t.written!=="target")return Math.max(s[t.written||"text"].length-1,0);if(t.asked?.source===this.given.source&&s.target[t.asked.place]===t.asked.word)return t.asked.place;let n=s.target.flatMap((o,r)=>t.pronouns.includes(o.toLowerCase())?[r]:[]);return n.length===1?n[0]:0}others(t){let{model:s,texts:n}=this.header,o=n.target?.[t];return t!==this.header.chosen||!o?null:s.asked?.place===t&&s.asked.word===o&&s.asked.source===this.given.source?s.asked.others:s.pronouns.includes(o.toLowerCase())?s.pronouns.filter(r=>r!==o.toLowerCase()):null}explain(t,{lenses:s,changes:n}){let{header:o,answer:r}=this;s.length&&(o.explained[t]=s),o.changes&&n.forEach((a,i)=>o.changes.erased[r.erasable[i]]={...ls,...a})}measure(t,{kinds:s,...n}){this.effects={place:t,...n};for(let o of this.header.attentions){let{heads:r,layers:a}=s[o.kind]??{};o.layers=a,r?o.statistics.effect=r:delete o.statistics.effect}}head(t,s,n){let{shape:[,o,r,a],weights:i}=this.header.attentions[t],l=r*a,c=new Float32Array(l);for(let d=n==="mean"?0:n,h=n==="mean"?o:n+1;d<h;d+=1)for(let u=0,m=(s*o+d)*l;u<l;u+=1)c[u]+=i[m+u]/(n==="mean"?o:1);return new R(c,r,a,!0)}async thumbnails(t){let{shape:[s,n,o,r],weights:a}=this.header.attentions[t],[i,l]=[Math.min(o,as),Math.min(r,as)],c=new Uint8Array(s*n*i*l);for(let d=0;d<a.length;d+=1){let h=d%r,u=Math.floor(d/r)%o,w=(Math.floor(d/r/o)*i+Math.floor(u*i/o))*l+Math.floor(h*l/r);c[w]=Math.max(c[w],Math.round(255*Math.sqrt(a[d])))}return await new Promise(requestAnimationFrame),{rows:i,columns:l,bytes:c}}};function En(e,t){return Object.fromEntries(Object.entries(e).map(([s,n])=>{let o=t[s],r=Array.from({length:n.length+1},()=>new Uint16Array(o.length+1)),a=[[],[]];for(let i=n.length-1;i>=0;i-=1)for(let l=o.length-1;l>=0;l-=1)r[i][l]=n[i]===o[l]?r[i+1][l+1]+1:Math.max(r[i+1][l],r[i][l+1]);for(let[i,l]=[0,0];i<n.length&&l<o.length;)n[i]===o[l]?(a[0].push(i++),a[1].push(l++)):r[i+1][l]>=r[i][l+1]?i+=1:l+=1;return[s,a]}))}var ls={probabilities:[],likeliest:[],translation:null,similarities:[]};function Cn({follows:e},t,s){let n=(r,a=r)=>({...ls,...a,translation:r.finished===void 0?[]:r.texts.target.slice(0,-1)}),o={similarities:s.texts[s.texts.target?"target":"text"].map(()=>1)};return{follows:e,unchanged:{...n(s),...o},now:t===s?null:{...n(t,t.against),...o},erased:{}}}var ae=class{constructor(t,{shape:s,weights:n}){Object.assign(this,{links:{},says:"",...t,shape:s,weights:n})}get sums(){let[,,,t]=this.shape,{weights:s}=this;for(let n=0;n<s.length;n+=t)if(Math.abs(s.subarray(n,n+t).reduce((o,r)=>o+r,0)-1)>.01)return"Rows of words that may look at no word sum to 0.";return""}get statistics(){return this.measured??=this.#t()}#t(){let[t,s,n,o]=this.shape,r=[this.rows,this.columns].sort().join(),a=this.rows===this.columns||r==="read,target",i={entropy:[],first:[],received:[],...a?{distance:[]}:{}};for(let l=0;l<t;l+=1){for(let c of Object.values(i))c.push([]);for(let c=0;c<s;c+=1){let d=new Float64Array(o),[h,u,m]=[0,0,0];for(let w=0;w<n;w+=1)for(let $=0;$<o;$+=1){let g=this.weights[((l*s+c)*n+w)*o+$];g>0&&(h-=g*Math.log(g)/n),$===0&&(u+=g/n),m+=g*Math.abs(w-$)/n,d[$]+=g/n}for(let[w,$]of Object.entries({entropy:h,first:u,distance:m,received:Math.max(...d)}))i[w]?.[l].push($)}}return i}};var On=12,X={erase:"",off:"",factor:"1",warmth:"1",masks:""},Ot=class{constructor({model:t},s=document){let n=i=>s.getElementById(i).textContent,[o,r]=[n("regard-model"),n("regard-tensors")],a=this.waiting=new Map;this.model=t,this.words=JSON.parse(o).words??[],this.worker=window.regardWorker,this.worker.onmessage=({data:{id:i,answer:l,error:c}})=>{let{done:d,fail:h}=a.get(i);a.delete(i),c===void 0?d(l):h(new Error(c))},this.ready=this.#t("load",{text:o,packed:r,digest:t.digest}),this.ready.catch(()=>{}),this.last=0}#t(t,s){return new Promise((n,o)=>{let r=this.last=(this.last??0)+1;this.waiting.set(r,{done:n,fail:o}),this.worker.postMessage({...s,id:r,ask:t})})}async ask(t,s){return await this.ready,this.#t(t,s)}async run(t){let{target:s,probabilities:n,text:o,unknown:r,attention:a}=await this.ask("run",t),i=([c,...d],h)=>Array.from({length:c},(u,m)=>{let w=h.subarray(m*h.length/c,(m+1)*h.length/c);return d.length?i(d,w):w[0]}),l=Object.entries(a).map(([c,{shape:d,weights:h}])=>[c,i(d,h)]);return{target:s,probabilities:n,text:o,unknown:r,attention:Object.fromEntries(l)}}async play(t,s){let{changed:n,...o}=ds(s);this.plain?.given.source!==o.source&&(this.plain=new Y(t,o,await this.ask("run",o)));let{plain:r}=this;if(!Object.keys(n).length)return r;let a={...o,...n},i=r.answer.follows===void 0?r.answer.ids.target:[r.answer.follows];return new Y(t,a,await this.ask("run",{...a,against:i}),r)}},hs=e=>e.split(".").map(Number);function ds({text:e,erase:t,off:s,factor:n,warmth:o,masks:r}){let a=s.split(",").filter(Boolean).map(l=>l.split(".")).map(([l,c,d])=>[l,Number(c),Number(d)]),i=Object.fromEntries(r.split(";").filter(l=>l.includes(":")).map(l=>l.split(/:(.*)/s).map(c=>c.trim())));return{source:e,changed:{...t?{erase:hs(t)}:{},...a.length?{off:a}:{},...Number(n)!==1?{scale:Number(n)}:{},...Number(o)!==1?{temperature:Number(o)}:{},...Object.keys(i).length?{patterns:i}:{}}}}async function ot(e,t,s=performance.now()){if(Object.assign(e.state,t),e.playing)return e.waits=s;e.playing=!0;do{e.waits=null;try{let n=e.state.text.trim()?await e.engine.play(e.stored,e.state):null;e.state.busy=n?"":"The sentence is empty; write one.",n&&e.waits===null&&await e.replace(n),window.regard.shown.push(performance.now()-s)}catch(n){e.state.busy=n.message}s=e.waits??s}while(e.waits!==null);return e.playing=!1,await e.draw(),rt(e,s)}var Nn={lenses:[],changes:[]},Ft=({state:e,source:t})=>Number(e.place??t.header.chosen);async function rt(e,t=performance.now()){let{source:s}=e,{header:n}=s,o=Ft(e);if(!(s instanceof Y)||n.explained[o]||e.asking===s)return;e.asking=s;let r=Nn;try{r=await e.engine.ask("lens",{...s.given,place:o,others:s.others(o)})}catch(a){e.state.busy=a.message}if(e.asking=null,!(e.source!==s||e.playing)){if(!r)return rt(e,t);s.explain(o,r),n.explained[o]??=[],await e.draw(),window.regard.coloured.push(performance.now()-t)}}async function us(e){let{source:t}=e,s=Ft(e);if(!(t instanceof Y)||t.effects?.place===s||(t.effects&&t.measure(null,{kinds:{}}),e.asking||e.playing))return;e.asking=t;let n={kinds:{}};try{n=await e.engine.ask("effects",{...t.given,place:s,others:t.others(s)})}catch(o){e.state.busy=o.message}e.asking=null,n&&t.measure(s,n),e.source===t&&!e.playing&&await e.draw()}var fs=(e,t,s)=>{let n=e?e.split(s):[];return(n.includes(t)?n.filter(o=>o!==t):[...n,t]).join(s)};function It(e){let{state:{layer:t,head:s,off:n},attention:o}=e;if(!e.engine||s==="mean")return y;let r=`${o.kind}.${t}.${s}`;return f`<button
aria-pressed=${String(n.split(",").includes(r))}
@click=${()=>ot(e,{off:fs(n,r,",")})}
>
Switched off
</button>`}function ms(e){let{state:t,source:{header:s,answer:n,base:o},engine:r}=e,{texts:a,model:i}=s,l=(o??e.source).header.texts,c=a.source??a.text,d=t.erase?hs(t.erase):[],h=n.unknown??[],u=Object.keys(X).some(p=>String(t[p])!==X[p]),m=(p,b)=>{e.lit=b===null?null:{text:p,at:b},e.light?.()},w=(p,b)=>({enter:()=>m(p,b),leave:()=>m(p,null)}),$=(p,b,k,v,S)=>{let{enter:T,leave:N}=w(p,b);return f`<button
class="word ${p==="target"?"":"erased"}"
aria-pressed=${String(v)}
@click=${S}
@pointerenter=${T}
@pointerleave=${N}
@focus=${T}
@blur=${N}
>
<bdi>${k}</bdi>
</button>`},g=a.source?"source":"text",x=p=>p.map(([b,k])=>f`<bdi>${b}</bdi> ${k.toFixed(3)} `);return f`<form class="live" @submit=${p=>p.preventDefault()}>
<label for="sentence">${i.label}</label>
<input
id="sentence"
name="text"
.value=${t.text}
maxlength="1000"
autocomplete="off"
spellcheck="false"
list="known"
@input=${p=>ot(e,{text:p.target.value,erase:"",place:void 0},p.timeStamp)}
/>
<datalist id="known">
${Fn(t.text,r.words).map(p=>f`<option value=${p}></option>`)}
</datalist>
<span role="alert">${t.busy}</span>
</form>
${h.length?f`<p class="unknown" role="status">Not in the training of this model: <bdi>${h.join(", ")}</bdi>; what it makes of such words is a guess.</p>`:y}
<div class="played">
<span>reads</span>
<div class="words" role="group" aria-label="Words that are read; press one to erase it">
${c.map((p,b)=>n.erasable.includes(b)?$(g,b,l[g][b]??p,d.includes(b),()=>ot(e,{erase:fs(t.erase,String(b),".")})):f`<span class="word plain"><bdi>${p}</bdi></span>`)}
</div>
${a.target?f`<span>writes</span>
<div
class="words"
role="group"
aria-label="Words that are written; press one to explain it"
>
${a.target.map((p,b)=>$("target",b,p,b===Number(t.place??s.chosen),()=>e.set({row:b,place:b})))}
</div>`:n.follows!==void 0?f`<span>next</span>
<p>${x(n.likeliest.at(-1))}</p>`:n.likeliest.length?f`<span>masked</span>
<p>${n.likeliest.map(p=>f`${x(p)}<br />`)}</p>`:n.target.length?f`<span>class</span>
<p>${x(n.target.map((p,b)=>[p,n.probabilities[b]]))}</p>`:y}
</div>
<details class="tweaks" ?open=${u}>
<summary>Change the model${u?" (changed)":""}</summary>
<div class="bar">
${cs(e,"factor","Scores \xD7","Factor of all attention scores")}
${cs(e,"warmth","Temperature","What the logits of words are divided by")}
${i.kinds.map(p=>ce(e,p))}
${t.off?f`<span class="badge">off: ${t.off.split(",").join(", ")}</span>`:y}
<button type="button" ?disabled=${!u} @click=${()=>ot(e,X)}>
As trained
</button>
</div>
</details>`}function cs(e,t,s,n){return f`<label class="choice"
><span>${s} ${Number(e.state[t]).toFixed(2)}</span
><input
type="range"
min="-3"
max="3"
step="0.1"
.value=${String(Math.log2(e.state[t]))}
aria-label=${n}
@input=${o=>ot(e,{[t]:(2**o.target.value).toFixed(3).replace(/\.?0+$/,"")},o.timeStamp)}
/></label>`}function le({state:e},t){return ds(e).changed.patterns?.[t]??""}function Nt(e,t,s,n){let{state:o,source:{header:{model:r}}}=e,a=o.masks.split(";").filter(c=>c&&!c.startsWith(`${t}:`)),i=s.replaceAll(";","").trim(),l=i===r.patterns[t]?"":i;return ot(e,{masks:[...a,...l?[`${t}:${l}`]:[]].join(";")},n)}var ie=/\b(sliding_window|causal_window)\((\d+)\)/;function ce(e,{kind:t,name:s,columns:n}){let o=e.source.header.model.patterns[t],r=le(e,t),a=r||o,[,i,l]=a.match(ie)??[],c=Math.max(e.source.answer.pieces[n==="read"?"target":n].length-1,1),d=l===void 0?c:Math.min(i==="sliding_window"?l>>1:l-1,c),h=u=>{if(u===c&&!ie.test(o))return a.replace(/^(.*) & sliding_window\(\d+\)$/s,"$1").replace(/^\((.*)\)$/s,"$1");let m=`${i??"sliding_window"}(${i==="causal_window"?u+1:2*u})`;return l===void 0?`${a.includes("|")?`(${a})`:a} & ${m}`:a.replace(ie,m)};return f`<label class="choice"
><span>Pattern, ${s.toLowerCase()}</span
><input
size="22"
placeholder=${o}
.value=${r}
@change=${u=>Nt(e,t,u.target.value)}
/></label>
<label class="choice"
><span
>Window
${l===void 0?"all":i==="causal_window"?`${d} back`:`\xB1${d}`}</span
><input
type="range"
min="0"
max=${c}
.value=${String(d)}
aria-label="Window, ${s.toLowerCase()}"
@input=${u=>Nt(e,t,h(Number(u.target.value)),u.timeStamp)}
/></label>`}function Fn(e,t){let[,s,n]=e.match(/^(.*?)([\p{L}\p{N}']+)$/su)??[null,"",""],o=[];for(let r=0;n&&r<t.length&&o.length<On;r+=1)t[r].length>n.length&&t[r].toLowerCase().startsWith(n.toLowerCase())&&o.push(`${s}${t[r]}`);return o}var{I:xr}=Xe;var $s=e=>e.strings===void 0;var ws={ATTRIBUTE:1,CHILD:2,PROPERTY:3,BOOLEAN_ATTRIBUTE:4,EVENT:5,ELEMENT:6},he=e=>(...t)=>({_$litDirective$:e,values:t}),Lt=class{constructor(t){}get _$AU(){return this._$AM._$AU}_$AT(t,s,n){this._$Ct=t,this._$AM=s,this._$Ci=n}_$AS(t,s){return this.update(t,s)}update(t,s){return this.render(...s)}};var ft=(e,t)=>{let s=e._$AN;if(s===void 0)return!1;for(let n of s)n._$AO?.(t,!1),ft(n,t);return!0},jt=e=>{let t,s;do{if((t=e._$AM)===void 0)break;s=t._$AN,s.delete(e),e=t}while(s?.size===0)},gs=e=>{for(let t;t=e._$AM;e=t){let s=t._$AN;if(s===void 0)t._$AN=s=new Set;else if(s.has(e))break;s.add(e),jn(t)}};function In(e){this._$AN!==void 0?(jt(this),this._$AM=e,gs(this)):this._$AM=e}function Ln(e,t=!1,s=0){let n=this._$AH,o=this._$AN;if(o!==void 0&&o.size!==0)if(t)if(Array.isArray(n))for(let r=s;r<n.length;r++)ft(n[r],!1),jt(n[r]);else n!=null&&(ft(n,!1),jt(n));else ft(this,e)}var jn=e=>{e.type==ws.CHILD&&(e._$AP??=Ln,e._$AQ??=In)},Wt=class extends Lt{constructor(){super(...arguments),this._$AN=void 0}_$AT(t,s,n){super._$AT(t,s,n),gs(this),this.isConnected=t._$AU}_$AO(t,s=!0){t!==this.isConnected&&(this.isConnected=t,t?this.reconnected?.():this.disconnected?.()),s&&(ft(this,t),jt(this))}setValue(t){if($s(this._$Ct))this._$Ct._$AI(t,this);else{let s=[...this._$Ct._$AH];s[this._$Ci]=t,this._$Ct._$AI(s,this,0)}}disconnected(){}reconnected(){}};var Wn="system-ui, sans-serif",M=he(class extends Wt{render(){}update(e,[t]){queueMicrotask(()=>this.isConnected&&t(e.element))}});function I(e,t,s){let n=window.devicePixelRatio||1,[o,r]=[Math.round(t*n),Math.round(s*n)];e.width!==o&&(e.width=o),e.height!==r&&(e.height=r),e.style.width=`${t}px`,e.style.height=`${s}px`;let a=e.getContext("2d");return a.setTransform(n,0,0,n,0,0),a.clearRect(0,0,t,s),a.textBaseline="middle",a}function H(e,t,s="normal"){e.font=`${s} ${t}px ${Wn}`}function C(e){let t=getComputedStyle(e),s=n=>t.getPropertyValue(n).trim();return{ink:s("--ink"),faint:s("--faint"),line:s("--line"),accent:s("--accent"),unseen:s("--unseen"),lit:es,paper:s("--paper")}}function D(e,t,s){if(e.measureText(t).width<=s)return t;let[n,o]=[0,t.length];for(;n<o;){let r=n+o+1>>1;e.measureText(`${t.slice(0,r)}\u2026`).width<=s?n=r:o=r-1}return`${t.slice(0,n)}\u2026`}function Ht(e,t){for(let s of e.childNodes)s.nodeType===Node.TEXT_NODE&&(s.data=t)}function B(e){let t=e.currentTarget.getBoundingClientRect();return[e.clientX-t.left,e.clientY-t.top]}var de={ArrowLeft:[0,-1],ArrowRight:[0,1],ArrowUp:[-1,0],ArrowDown:[1,0],PageUp:[-10,0],PageDown:[10,0]};function O(e,[t,s],[n,o]){let r=null;return e.key in de?r=[t+de[e.key][0],s+de[e.key][1]]:e.key==="Home"?r=[e.ctrlKey?0:t,0]:e.key==="End"&&(r=[e.ctrlKey?n-1:t,o-1]),r===null?null:(e.preventDefault(),[Math.min(Math.max(r[0],0),n-1),Math.min(Math.max(r[1],0),o-1)])}function A(e,t,s,n){return f`<label class="choice"
><span>${e}</span>
<select @change=${o=>n(o.target.value)}>
${t.map(([o,r])=>f`<option
value=${o}
?selected=${String(o)===String(s)}
.selected=${String(o)===String(s)}
>
${r}
</option>`)}
</select></label
>`}function P(e,{mean:t=!0,kinds:s=!0}={}){let{state:n,source:o}=e,[r,a]=e.attention.shape,i=c=>Array.from({length:c},(d,h)=>[h,String(h)]),l=t&&a>1?[["mean",`mean of ${a}`]]:[];return f`
${s&&o.header.attentions.length>1?A("Attention",o.header.attentions.map((c,d)=>[d,c.name]),n.kind,c=>e.set({kind:c,layer:o.header.attentions[c].shape[0]-1})):y}
${A("Layer",i(r),n.layer,c=>e.set({layer:c}))}
${A("Head",[...l,...i(a)],n.head,c=>e.set({head:c}))}
${It(e)}
`}function Pt(e,t=!0){let{state:s}=e,n=Object.entries(St).filter(([o])=>t||o!=="largest");return f` ${A("Scale",n,s.scale,o=>e.set({scale:o}))} `}function ue([e,t],{place:s=o=>o,note:n=""}={}){return f`<p class="legend">
<span>${e}</span
><canvas
width="160"
height="12"
role="img"
aria-label="Colours from ${e} to ${t}"
${M(o=>{let r=o.getContext("2d");for(let a=0;a<160;a+=1)r.fillStyle=Ct(s(a/159)),r.fillRect(a,0,1,12)})}
></canvas
><span>${t}</span>${n?f`<span>${n}</span>`:y}
</p>`}var Hn="(0.25 is in the middle)";function Rt({state:{scale:e}},t=!0){return ue(["0",t&&e==="largest"?"the row's largest weight":"1"],{note:e==="root"?Hn:""})}function bs(e){return e.sums||"The weights of each row sum to 1."}function L(e){return e.exact?f`<span class="badge" title="Weights are stored as 32-bit floating-point numbers."
>exact</span
>`:f`<span class="badge" title="Weights are stored as one byte each on a square-root scale."
>rounded to 0.004 or better</span
>`}var Pn=620;function xs(e,t){let{state:s,source:n}=e,{second:o}=n.header,r=ks(e),[a,i]=r.attention?r.attention.shape:[0,0],l=[];for(let d=0;d<a;d+=1){r.outside&&i>1&&l.push([`${d}.mean`,`layer ${d}, mean of ${i}`]);for(let h=0;h<i;h+=1)l.push([`${d}.${h}`,`layer ${d}, head ${h}`])}let c=e.compared?.key===fe(e)&&e.compared.source===n?e.compared:null;return!c&&r.attention&&Rn(e,t,r),f`
<h2>${o?"Compare":"Compare two heads"}</h2>
<div class="bar">
${P(e)} ${L(t)}
${o?A("With",[["other",o.said],["own","another head of the same"]],r.outside?"other":"own",d=>e.set({against:d,other:void 0})):y}
${l.length?A(o?"Its head":"With",l,`${r.layer}.${r.head}`,d=>e.set({other:d.split(".")})):y}
${c?L(c.second):y}
</div>
${r.outside?f`<p class="hint">
The page shows: <bdi>${n.header.title}</bdi>; the other is:
<bdi>${o.header.title}</bdi>
${o.header.notes.map(d=>f`<bdi>${d}</bdi> `)}
</p>`:y}
<p class="hint">
Blue: the first head has more weight there; red: the second. Beside each row its
Jensen-Shannon distance, from 0 (equal) to 1 (no key in common).
</p>
${r.attention?c?Bn(e,c):f`<p class="hint">Comparing…</p>`:f`<p class="hint">The other has no ${e.attention.name.toLowerCase()}.</p>`}
${r.outside&&!e.engine&&n.header.texts.target&&n.header.changes&&o.header.changes?qn(n.header,o):y}
`}function ks(e){let{header:t}=e.source,s=!!t.second&&e.state.against!=="own",n=s?t.second.header.attentions:t.attentions,o=s?n.findIndex(({name:h})=>h===e.attention.name):e.state.kind,r=n[o];if(!r)return{outside:s,attention:r,kind:o};let[a,i]=r.shape,[l,c]=e.state.other??(s?[e.state.layer,e.state.head]:[0,0]),d=(h,u)=>Math.min(Math.max(Math.trunc(Number(h))||0,0),u-1);return{outside:s,attention:r,kind:o,layer:d(l,a),head:s&&c==="mean"&&i>1?"mean":d(c,i)}}function fe(e){let{outside:t,kind:s,layer:n,head:o}=ks(e);return[e.state.kind,e.state.layer,e.state.head,t,s,n,o].join("/")}async function Rn(e,t,{outside:s,attention:n,kind:o,layer:r,head:a}){let i=fe(e),{source:l}=e,c=s?l.second??=new F(l.header.second.header,l.arrays):l,d=await c.head(o,r,a);if(i!==fe(e)||e.source!==l||e.state.view!=="compare")return;let{matched:h}=l.header.second??{},u=b=>Array.from({length:b},(k,v)=>v),[m,w]=[[e.attention.rows,t.rows],[e.attention.columns,t.columns]].map(([b,k])=>s?h[b]:[u(k),u(k)]),$=[ps(t,m[0],w[0]),ps(d,m[1],w[1])],g=$[0].weights.values.map((b,k)=>b-$[1].weights.values[k]),x=g.reduce((b,k)=>Math.max(b,Math.abs(k)),0),p=m[0].map((b,k)=>Dn(...$.map(({weights:v,rest:S})=>[...v.row(k),S[k]])));e.compared={key:i,source:l,first:$[0].weights,second:$[1].weights,values:g,largest:x,distances:p,outside:s,hidden:$.map(({rest:b})=>$e(b)),left:t.rows-m[0].length,words:{rows:me(e.words.rows,c.words(n).rows,m),columns:me(e.words.columns,c.words(n).columns,w)}},e.draw()}function me(e,t,[s,n]){return s.map((o,r)=>e[o]===t[n[r]]?e[o]:`${e[o]} / ${t[n[r]]}`)}function ps(e,t,s){let n=new Float32Array(t.length*s.length),o=t.map((r,a)=>{let i=e.row(r),l=0;for(let c of i)l+=c;return s.forEach((c,d)=>{n[a*s.length+d]=i[c],l-=i[c]}),Math.max(l,0)});return{weights:new R(n,t.length,s.length,e.exact),rest:o}}function $e(e){return e.length?e.reduce((t,s)=>t+s,0)/e.length:0}function Dn(e,t){let s=0;for(let n=0;n<e.length;n+=1){let o=(e[n]+t[n])/2;e[n]>0&&(s+=e[n]*Math.log2(e[n]/o)/2),t[n]>0&&(s+=t[n]*Math.log2(t[n]/o)/2)}return Math.sqrt(Math.max(s,0))}function Bn(e,t){if(!t.first.rows||!t.first.columns)return f`<p class="hint">
The two have no words in common there, so there is nothing to compare.
</p>`;let s=ys(e,t);return f` <p class="summary" data-distance>
Mean distance of the rows: ${$e(t.distances).toFixed(3)}; the largest difference of a
weight is ${t.largest.toFixed(3)}.
</p>
${t.outside?f`<p class="hint" data-hidden>
Hidden:
${t.hidden.map(n=>`${(100*n).toFixed(0)} %`).join(" of the first and ")}
of the second are on words without a partner in the other; they count as one more word.
${t.left?`${t.left} ${t.left===1?"row of the first has":"rows of the first have"} no partner.`:""}
</p>`:y}
<canvas
class="difference"
tabindex="0"
role="application"
aria-roledescription="map of differences"
aria-label="Differences; arrow keys move. ${s}"
${M(n=>Vn(e,n,t))}
@click=${n=>zn(e,n,t)}
@keydown=${n=>{let o=O(n,Dt(e,t),[t.first.rows,t.first.columns]);o&&e.set({pair:o}).then(()=>e.set({said:ys(e,t)}))}}
></canvas>
<p class="readout">${s}</p>
${ue([`the second has ${t.largest.toFixed(3)} more`,`the first has ${t.largest.toFixed(3)} more`],{place:n=>2*n-1})}
<details class="twin">
<summary>The row as a table</summary>
${Un(e,t)}
</details>`}function Dt(e,{first:t}){let[s,n]=e.state.pair??[0,0];return[Math.min(s,t.rows-1),Math.min(n,t.columns-1)]}function ys(e,t){let{first:s,second:n,distances:o,words:r}=t,[a,i]=Dt(e,t);return`${r.rows[a]} looks at ${r.columns[i]} with ${s.at(a,i).toFixed(4)} in the first head and ${n.at(a,i).toFixed(4)} in the second; distance of the row ${o[a].toFixed(3)}.`}function Un(e,t){let[s]=Dt(e,t),{first:n,second:o,words:r}=t;return f`<div class="scroll" tabindex="0" role="region" aria-label="The row as a table">
<table>
<thead>
<tr>
<th scope="col">Word</th>
<th scope="col">First</th>
<th scope="col">Second</th>
<th scope="col">Difference</th>
</tr>
</thead>
<tbody>
${r.columns.slice(0,100).map((a,i)=>f`<tr>
<th scope="row"><bdi>${a}</bdi></th>
<td>${n.at(s,i).toFixed(4)}</td>
<td>${o.at(s,i).toFixed(4)}</td>
<td>${(n.at(s,i)-o.at(s,i)).toFixed(4)}</td>
</tr>`)}
</tbody>
</table>
</div>`}function qn(e,t){let s=(t.matched.target??[[],[]])[0].map((n,o)=>[n,t.matched.target[1][o]]);return f`<details class="twin" open>
<summary>The probability of each written word</summary>
<div class="scroll" tabindex="0" role="region" aria-label="Probabilities of written words">
<table data-written>
<thead>
<tr>
<th scope="col">Word</th>
<th scope="col">First</th>
<th scope="col">Second</th>
</tr>
</thead>
<tbody>
${s.map(([n,o])=>f`<tr>
<th scope="row">
<bdi
>${me(e.texts.target,t.header.texts.target,[[n],[o]])[0]}</bdi
>
</th>
<td>${e.changes.unchanged.probabilities[n].toFixed(3)}</td>
<td>${t.header.changes.unchanged.probabilities[o].toFixed(3)}</td>
</tr>`)}
</tbody>
</table>
</div>
</details>`}function Vn(e,t,s){let{first:n,values:o,largest:r,distances:a,words:i}=s,l=C(t),c=Math.max(t.parentElement.clientWidth-2,240),d=90,h=64,u=Math.max(Math.min((c-d-70)/n.columns,Pn/n.rows,30),.1),[m,w]=[u*n.columns,u*n.rows],$=I(t,d+m+66,h+w+4);t.place={left:d,top:h,cell:u};let g=new OffscreenCanvas(n.columns,n.rows),x=new ImageData(n.columns,n.rows);o.forEach((v,S)=>{x.data.set([...Et(r?v/r:0),255],4*S)}),g.getContext("2d").putImageData(x,0,0),$.imageSmoothingEnabled=u<1,$.drawImage(g,d,h,m,w),H($,u<9?10:Math.min(Math.max(u*.6,8),12));let p=u<9?Math.ceil(20/u):Math.ceil(11/u);$.textAlign="left",$.fillStyle=l.ink;for(let v=0;v<n.columns;v+=p)$.save(),$.translate(d+(v+.5)*u,h-4),$.rotate(-Math.PI/4),$.fillText(D($,i.columns[v],80),0,0),$.restore();for(let v=0;v<n.rows;v+=p)$.fillStyle=l.ink,$.textAlign="right",$.fillText(D($,i.rows[v],d-8),d-5,h+(v+.5)*u),$.fillStyle=l.accent,$.fillRect(d+m+4,h+v*u,50*$e(a.slice(v,v+p)),Math.max(u*p-1,1));let[b,k]=Dt(e,s);$.strokeStyle=l.accent,$.lineWidth=2,$.strokeRect(d+k*u,h+b*u,Math.max(u,4),Math.max(u,4))}function zn(e,t,{first:s}){let{left:n,top:o,cell:r}=t.currentTarget.place,[a,i]=B(t),[l,c]=[Math.floor((i-o)/r),Math.floor((a-n)/r)];l>=0&&l<s.rows&&c>=0&&c<s.columns&&e.set({pair:[l,c]})}var ge={layer:{title:"layer and head",says:""},entropy:{title:"entropy",says:"low: each word looks at few others; high: at all alike",unit:"nats"},distance:{title:"distance",says:"the mean distance between a word and what it looks at",unit:"words"},first:{title:"weight of the first word",says:"a head that looks there does little (an attention sink)"},received:{title:"most received",says:"the largest share of all weight that one word receives"},effect:{title:"effect on the word",says:"how far the log odds of the word fall when the head gives nothing; one head alone: of two that do the same, neither may have an effect"},apart:{title:"distance from the other",says:"the mean Jensen-Shannon distance from the same head of what is compared: 0 equal, 1 no key in common"}},Kn=new Set(["apart","effect"]);function Bt(e,t){if(ge[t]||!Object.hasOwn(e.links,t))return ge[t]??{title:t,says:""};let[s,n]=e.links[t];return{title:`relation: ${t}`,says:`the mean weight on the right word, over ${s} link${s===1?"":"s"} of this text that rules for English find; ${n.toFixed(2)} if all words had the same weight; one text says little about a head in general`}}var U=14,j=15,be=3,Gn=56,we=100;function vs(e){let{state:t,attention:s}={state:e.state,attention:e.attention};us(e);let n=["layer",...Object.keys(s.statistics)],o=n.includes(t.sort)?t.sort:"layer",r=Bt(s,o),a=As(s,o),i=e.source.header.attentions,[l,c]=s.shape,d=Math.max(a.findIndex(([h,u])=>h===t.layer&&u===t.head),0);return f`
<h2>What does each head do?</h2>
<div class="bar">
${i.length>1?A("Attention",i.map((h,u)=>[u,h.name]),t.kind,h=>e.set({kind:h})):""}
${A("Sort by",n.map(h=>[h,Bt(s,h).title]),o,h=>e.set({sort:h}))}
${Pt(e,!1)} ${It(e)}
</div>
<p class="hint">
${s.name}. Rows: ${s.row_title}. Columns: ${s.column_title}.
${s.sums??""}
${r.says?`Sorted by ${r.title} (${r.says}), the ${Ms(o)?"highest":"lowest"} first. `:""}Choose
a head to see it large; each small map shows the largest weight of each part. Above each map:
layer.head, both counted from 0, so ${l-1}.${c-1} is head ${c-1} of layer
${l-1}${o==="layer"?"":`; then the ${r.title}`}.
</p>
${Qn(e)} ${Rt(e,!1)}
<canvas
class="heads"
tabindex="0"
role="application"
aria-roledescription="map of heads"
aria-label="Heads; arrow keys move, Enter opens a head. ${_s(s,a,d)}"
data-chosen=${d}
${M(h=>Ss(e,h,a,d,o))}
@click=${h=>Ts(e,a,Zn(h))}
@keydown=${h=>to(e,h,a,d)}
></canvas>
<details class="twin">
<summary>The same as a table</summary>
${eo(e,s,a,n)}
</details>
`}function As(e,t){let[s,n]=e.shape,o=[];for(let l=0;l<s;l+=1)for(let c=0;c<n;c+=1)o.push([l,c]);let r=e.statistics[t],a=Ms(t)?-1:1,i=([l,c])=>r[l][c]??a*(1/0);return r?o.sort((l,c)=>i(l)===i(c)?0:a*(i(l)-i(c))):o}function Ms(e){return Kn.has(e)||!ge[e]}var at=(e,t)=>e===null?"\u2013":`${e<0?"\u2212":""}${Math.abs(e).toFixed(t)}`;function Qn(e){let{source:t,attention:s}=e,{effects:n}=t,o=Ft(e);if(!e.engine||n?.place===o&&!s.statistics.effect)return"";if(n?.place!==o)return f`<p class="hint" role="status" data-effects>
Switching off one head after the other…
</p>`;let r=As(s,"effect")[0];return f`<p class="hint" data-effects>
What each head does for
“<bdi>${n.word}</bdi>”${n.others.length?f` rather than ${n.others.map((a,i)=>f`${i?" or ":""}<bdi>${a}</bdi>`)}`:""}:
without ${r.join(".")} its log odds of ${at(n.own,2)} fall by
${at(s.statistics.effect[r[0]][r[1]],2)}, more than without any other head
here. The bar above a map is as long as its head's effect, and red if the word gains without it.
Without all heads of a layer they fall by
${s.layers.map((a,i)=>`${at(a,2)} (layer ${i})`).join(", ")}.
</p>`}function _s(e,t,s){let[n,o]=t[s],r=Object.entries(e.statistics).map(([a,i])=>`${Bt(e,a).title} ${at(i[n][o],2)}`);return`Layer ${n}, head ${o}: ${r.join(", ")}.`}function Jn(e,t,s){let n=Math.max(e.parentElement.clientWidth-2,200),o=n-2*be+U,r=t.shape[1],a=Math.max(Math.min(Math.floor(o/(Gn+U)),r),1),i=a;for(;r%i;)i-=1;2*i<=a&&(i=a);let l=Math.min(Math.floor(o/i)-U,150),[,,c,d]=t.shape,h=Math.min(Math.max(Math.round(l*c/d),24),2*l);return{width:n,side:l,tall:h,across:i,down:Math.ceil(s.length/i)}}async function Ss(e,t,s,n,o){let{kind:r,scale:a}=e.state,{attention:i}=e,l=await e.source.thumbnails(r);if(!t.isConnected||e.state.view!=="heads")return;let{width:c,side:d,tall:h,across:u,down:m}=Jn(t,i,s);t.grid={side:d,tall:h,across:u},e.light=()=>t.isConnected&&e.state.view==="heads"&&Ss(e,t,s,n,o);let w=I(t,c,m*(h+j+U)),$=C(t),{effect:g}=i.statistics,x=Math.max(...g?.flat().map(Math.abs)??[]),p=new OffscreenCanvas(l.columns,l.rows),b=Tt();w.imageSmoothingEnabled=!1,s.forEach(([k,v],S)=>{let T=be+S%u*(d+U),N=Math.floor(S/u)*(h+j+U);Xn(p,l,k*i.shape[1]+v,b,a),w.drawImage(p,T,N+j,d,h),H(w,11),w.fillStyle=$.faint;let Re=i.statistics[o];w.fillText(`${k}.${v}${Re?`  ${at(Re[k][v],2)}`:""}`,T,N+j/2),g&&x&&(w.fillStyle=Ct(Math.sign(g[k][v])),w.fillRect(T,N+j-4,d*Math.abs(g[k][v])/x,3));let yt=S===n?2:.5;w.strokeStyle=S===n?$.accent:$.line,w.lineWidth=S===n?3:1,w.strokeRect(T-yt,N+j-yt,d+2*yt,h+2*yt),Yn(w,e,[T,N+j,d,h],$),e.state.off?.split(",").includes(`${i.kind}.${k}.${v}`)&&(w.strokeStyle=$.lit,w.lineWidth=2,w.beginPath(),w.moveTo(T,N+j+h),w.lineTo(T+d,N+j),w.stroke())})}function Yn(e,{lit:t,attention:s},[n,o,r,a],i){if(!t)return;let[,,l,c]=s.shape;e.strokeStyle=i.lit,e.lineWidth=1.5,s.rows===t.text&&e.strokeRect(n-1,o+a*t.at/l,r+2,Math.max(a/l,3)),s.columns===t.text&&e.strokeRect(n+r*t.at/c,o-1,Math.max(r/c,3),a+2),s.columns==="read"&&t.text==="target"&&t.at+1<c&&e.strokeRect(n+r*(t.at+1)/c,o-1,Math.max(r/c,3),a+2)}function Xn(e,{rows:t,columns:s,bytes:n},o,r,a){let i=new ImageData(s,t),l=new Uint32Array(i.data.buffer),c=o*t*s;for(let d=0;d<l.length;d+=1){let h=n[c+d]/255;l[d]=r[ut(a==="root"?h:h*h)]}e.getContext("2d").putImageData(i,0,0)}function Zn(e){let{side:t,tall:s,across:n}=e.currentTarget.grid,[o,r]=B(e),a=Math.min(Math.max(Math.floor((o-be)/(t+U)),0),n-1);return Math.floor(r/(s+j+U))*n+a}function Ts(e,t,s){t[s]&&e.set({layer:t[s][0],head:t[s][1],view:"map"})}function to(e,t,s,n){if(t.key==="Enter"||t.key===" "){t.preventDefault(),Ts(e,s,n);return}let{across:o}=t.currentTarget.grid,r=[Math.floor(n/o),n%o],a=O(t,r,[Math.ceil(s.length/o),o]);if(a===null)return;let i=Math.min(a[0]*o+a[1],s.length-1);e.set({layer:s[i][0],head:s[i][1],said:_s(e.attention,s,i)})}function eo(e,t,s,n){let o=n.filter(r=>r!=="layer");return f`<div class="scroll" tabindex="0" role="region" aria-label="Heads as a table">
<table>
<thead>
<tr>
<th scope="col">Layer</th>
<th scope="col">Head</th>
${o.map(r=>f`<th scope="col">${Bt(t,r).title}</th>`)}
</tr>
</thead>
<tbody>
${s.slice(0,we).map(([r,a])=>f`<tr>
<td>${r}</td>
<th scope="row">
<button
class="link"
aria-label="Open layer ${r}, head ${a}"
@click=${()=>e.set({layer:r,head:a,view:"map"})}
>
${a}
</button>
</th>
${o.map(i=>f`<td>${at(t.statistics[i][r][a],3)}</td>`)}
</tr>`)}
</tbody>
</table>
</div>
${s.length>we?f`<p class="hint">The first ${we} of ${s.length}.</p>`:""}`}var so=34,Es=9,no=110,pe=20;function Os(e,t){let{state:s,words:n}=e,o=Ut(e,t,s.row,s.column);return f`
<h2>Heat map</h2>
<div class="bar">
${P(e)} ${Pt(e)} ${L(t)}
<button @click=${r=>io(r,"png")}>Save PNG</button>
</div>
<p class="hint">
${e.attention.name}. Rows: ${e.attention.row_title}. Columns:
${e.attention.column_title}.
${bs(e.attention)}${e.attention.unwritten?" Grey cells did not exist yet.":""}
</p>
<div class="map" tabindex="-1">
<canvas
class="heatmap"
tabindex="0"
role="application"
aria-roledescription="heat map"
aria-label="Weights; arrow keys move. ${o}"
${M(r=>ro(e,r,t))}
@pointermove=${r=>Cs(e,r,t)}
@click=${r=>Cs(e,r,t)}
@keydown=${r=>ao(e,r,t)}
></canvas>
<div class="cursor" aria-hidden="true"></div>
</div>
<p class="readout" data-readout>${o}</p>
${Rt(e)}
<details class="twin" open>
<summary>The row of <bdi>${n.rows[s.row]}</bdi> as a table</summary>
${Ae(e,t)}
</details>
`}function Ut(e,t,s,n){let{rows:o,columns:r}=e.words;if(Ns(e,t,s,n))return`${o[s]} (${s}) could not look at ${r[n]} (${n}).`;let a=t.at(s,n),i=1;for(let l of t.row(s))l>a&&(i+=1);return`${o[s]} (${s}) looks at ${r[n]} (${n}) with weight ${ye(a)}, rank ${i} of ${r.length}.`}function ye(e){return e>=.001||e===0?e.toFixed(4):e.toExponential(2)}function Ns(e,t,s,n){return e.attention.unwritten&&n>s&&t.at(s,n)===0}function xe(e,t){let s=Math.max(e.parentElement.clientWidth-2,240),n=s<520,o=c=>c>=Es,[r,a]=n?[80,30]:[no,56],i=Math.min((s-r-a)/t.columns,so),l=window.devicePixelRatio||1;return o(i)||(i=Math.max(Math.min((s-38)/t.columns,Es-.5),1/l)),i=i>=2?Math.floor(i*l)/l:i,o(i)?{cell:i,left:r,right:a,top:78,named:!0,ratio:l}:{cell:i,left:24,right:12,top:24,named:!1,ratio:l}}function oo(e,{scale:t},s){let n=new OffscreenCanvas(e.columns,e.rows),o=new ImageData(e.columns,e.rows),r=new Uint32Array(o.data.buffer),a=Tt();for(let i=0,l=0;i<e.rows;i+=1){let c=e.row(i),d=t==="largest"?c[_(c,1)[0]]:1;for(let h=0;h<e.columns;h+=1,l+=1)r[l]=s&&s(i,h)?0:a[ut(rs(c[h],t,d))]}return n.getContext("2d").putImageData(o,0,0),n}function ro(e,t,s){let n=xe(t,s),{cell:o,left:r,right:a,top:i,named:l}=n,[c,d]=[s.columns*o,s.rows*o],h=C(t),u=[s.rows,e.state.scale,h.unseen,c,t.parentElement.clientWidth].join();if(t.place=n,t.painted!==s||t.key!==u){t.painted=s,t.key=u;let m=I(t,r+c+a,i+d+2);m.fillStyle=h.unseen,m.fillRect(r,i,c,d),m.imageSmoothingEnabled=o*n.ratio<1,m.drawImage(oo(s,e.state,(w,$)=>Ns(e,s,w,$)),r,i,c,d),m.strokeStyle=h.line,m.strokeRect(r-.5,i-.5,c+1,d+1),l?ke(m,e.words,n,h):ve(m,s,n,h)}mt(t,e.state.row,e.state.column)}function ke(e,{rows:t,columns:s},{cell:n,left:o,right:r,top:a},i){H(e,Math.min(Math.max(n*.62,8),13)),e.fillStyle=i.ink,e.textAlign="right",t.forEach((c,d)=>e.fillText(D(e,c,o-8),o-5,a+(d+.5)*n)),e.textAlign="left";let l=o+s.length*n+r;s.forEach((c,d)=>{let h=Math.SQRT2*(l-o-(d+.5)*n)-8;e.save(),e.translate(o+(d+.5)*n,a-5),e.rotate(-Math.PI/4),e.fillText(D(e,c,Math.min(96,h)),0,0),e.restore()})}function ve(e,t,{cell:s,left:n,top:o},r,a=1){H(e,10),e.fillStyle=r.faint;let i=[10,20,50,100,200,500,1e3].find(l=>l*s>=40)??5e3;e.textAlign="center";for(let l=0;l<t.columns;l+=i)e.fillText(String(l*a),n+(l+.5)*s,o-8);e.textAlign="right";for(let l=0;l<t.rows;l+=i)e.fillText(String(l*a),n-3,o+(l+.5)*s)}function mt(e,t,s){let{cell:n,left:o,top:r}=e.place,{style:a}=e.parentElement.querySelector(".cursor"),i=Math.max(n,6);a.transform=`translate(${o+(s+.5)*n-i/2}px, ${r+(t+.5)*n-i/2}px)`,a.width=`${i}px`,a.height=`${i}px`}function qt(e,{rows:t,columns:s}){let{cell:n,left:o,top:r}=e.currentTarget.place,[a,i]=B(e),[l,c]=[Math.floor((i-r)/n),Math.floor((a-o)/n)];return l>=0&&c>=0&&l<t&&c<s?[l,c]:[]}function Cs(e,t,s){let n=t.currentTarget,[o,r]=qt(t,s);o!==void 0&&(mt(n,o,r),t.type==="click"?e.set({row:o,column:r,said:Ut(e,s,o,r)}):Ht(n.parentElement.nextElementSibling,Ut(e,s,o,r)))}function ao(e,t,s){let{row:n,column:o}=e.state,r=O(t,[n,o],[s.rows,s.columns]);r!==null&&e.set({row:r[0],column:r[1],said:Ut(e,s,...r)})}function Ae(e,t){let{row:s}=e.state,{columns:n}=e.words,o=t.row(s),r=_(o,pe),a=Math.max(0,o.reduce((i,l)=>i+l,0)-r.reduce((i,l)=>i+o[l],0));return f`<div
class="scroll"
tabindex="0"
role="region"
aria-label="The largest weights of the row"
>
<table>
<thead>
<tr>
<th scope="col">Rank</th>
<th scope="col">Place</th>
<th scope="col">Word</th>
<th scope="col">Weight</th>
</tr>
</thead>
<tbody>
${r.map((i,l)=>f`<tr>
<td>${l+1}</td>
<td>${i}</td>
<th scope="row"><bdi>${n[i]}</bdi></th>
<td>${ye(o[i])}</td>
</tr>`)}
</tbody>
</table>
</div>
<p class="hint">
${n.length>pe?`The other ${n.length-pe} keys together: ${ye(a)}. `:""}Entropy
of the row: ${t.entropy(s).toFixed(3)} nats.
</p>`}function io(e){let t=e.currentTarget.closest("main").querySelector("canvas.heatmap"),s=new OffscreenCanvas(t.width,t.height),n=s.getContext("2d");n.fillStyle=C(t).paper,n.fillRect(0,0,s.width,s.height),n.drawImage(t,0,0),s.convertToBlob({type:"image/png"}).then(o=>{let r=document.createElement("a");r.href=URL.createObjectURL(o),r.download="attention.png",r.click(),setTimeout(()=>URL.revokeObjectURL(r.href),1e3)})}var E=22,q=16,js=640;function Ws(e,t){let{state:s,words:n}=e,o=Math.max(t.rows,t.columns),r=Math.min(o*E+8,js),{hidden:a,links:i}=t.links(s.row,s.share,q);return f`
<h2>Links</h2>
<div class="bar">
${P(e)} ${L(t)}
<label class="choice"
><span>Weight shown: ${Math.round(100*s.share)} %</span>
<input
type="range"
min="5"
max="100"
step="5"
.value=${String(Math.round(100*s.share))}
@input=${l=>e.set({share:Number(l.target.value)/100})}
/></label>
<span class="badge" data-hidden
>hidden: ${(100*a).toFixed(0)} % of this row,
${(100*lo(t,s.share)).toFixed(0)} % of all</span
>
</div>
<p class="hint">
On the left ${e.attention.row_title}, on the right ${e.attention.column_title}. Each word
is linked to as few words as carry the chosen share of its weight, at most ${q}. Choose a
word on the left.
</p>
<div
class="links"
@scroll=${l=>Vt(e,l.currentTarget.querySelector("canvas"),t)}
tabindex="-1"
>
<div
class="tall"
${M(l=>{l.style.height=`${o*E+8}px`,l.parentElement.style.maxHeight=`${r+2}px`})}
>
<canvas
tabindex="0"
role="application"
aria-roledescription="links"
aria-label="Links; up and down arrows choose a word. ${Me(e,t)}"
${M(l=>{l.tall=r,Hs(l.parentElement.parentElement,s.row),Vt(e,l,t)})}
@click=${l=>Ps(e,l,t)}
@keydown=${l=>ho(e,l,t)}
></canvas>
</div>
</div>
<p class="readout">${Me(e,t)}</p>
<details class="twin">
<summary>The row of <bdi>${n.rows[s.row]}</bdi> as a table</summary>
${Ae(e,t)}
</details>
${i.length===0?f`<p class="hint">This word looks at nothing.</p>`:""}
`}function lo(e,t){if(e.hiddenShare!==t){let[s,n]=[0,0];for(let o=0;o<e.rows;o+=1){s+=e.links(o,t,q).hidden;for(let r of e.row(o))n+=r}e.hiddenShare=t,e.hiddenMass=n?s/n:0}return e.hiddenMass}function Me(e,t){let{rows:s,columns:n}=e.words,{links:o,hidden:r}=t.links(e.state.row,e.state.share,q),a=o.slice(0,5).map(({key:i,weight:l})=>`${n[i]} (${l.toFixed(2)})`).join(", ");return`${s[e.state.row]} looks at ${a||"nothing"}; ${(100*r).toFixed(0)} % of its weight is hidden.`}function Hs(e,t){let s=t*E;e.revealed!==t&&(e.revealed=t,(s<e.scrollTop||s+E>e.scrollTop+e.clientHeight)&&(e.scrollTop=s-e.clientHeight/2))}function Vt(e,t,s,n=1/0){let o=t.parentElement.parentElement,r=Math.max(o.clientWidth-2,240),a=I(t,r,t.tall),i=C(t),{rows:l,columns:c}=e.words,d=Math.min(Math.max(r*.24,70),190),h=$=>$*E+E/2+4-o.scrollTop,u=Math.max(Math.floor(o.scrollTop/E)-1,0),m=u+Math.ceil(t.tall/E)+2;t.side=d;let w=s.rows>1;for(let $=u;$<Math.min(m,s.rows);$+=1)$!==e.state.row&&$<n&&Fs(a,s.links($,e.state.share,q).links,h($),h,[d+6,r-d-6],i.faint,w?.35:1);e.state.row>=u-40&&e.state.row<=m+40&&Fs(a,s.links(e.state.row,e.state.share,q).links,h(e.state.row),h,[d+6,r-d-6],i.accent,1),n<1/0&&co(a,s.row(e.state.row),u,m,h,r-d,d,i),Is(a,l,u,m,h,d,"right",i,e.state.row,d,n),Is(a,c,u,m,h,r-d,"left",i,-1,d)}function Fs(e,t,s,n,[o,r],a,i){e.strokeStyle=a;for(let{key:l,weight:c}of t)e.globalAlpha=i<1?i*Math.min(.15+.85*c,1):Math.min(.45+.55*c,1),e.lineWidth=.8+4*c+(i<1?0:.5),e.beginPath(),e.moveTo(o,s),e.bezierCurveTo((o+r)/2,s,(o+r)/2,n(l),r,n(l)),e.stroke();e.globalAlpha=1}function co(e,t,s,n,o,r,a,i){e.fillStyle=i.accent,e.globalAlpha=.25;for(let l=s;l<Math.min(n,t.length);l+=1)e.fillRect(r,o(l)-E/2+2,a*t[l],E-4);e.globalAlpha=1}function Is(e,t,s,n,o,r,a,i,l,c=r,d=1/0){e.textAlign=a;for(let h=s;h<Math.min(n,t.length);h+=1)H(e,13,h===l?"bold":"normal"),e.fillStyle=h===l?i.accent:i.ink,e.globalAlpha=h>d?.45:1,e.fillText(D(e,t[h],c-6),r,o(h));e.globalAlpha=1}function Ps(e,t,s){let n=t.currentTarget.parentElement.parentElement,o=Math.floor((B(t)[1]+n.scrollTop-4)/E);o>=0&&o<s.rows&&e.set({row:o})}function ho(e,t,s){let n=O(t,[e.state.row,0],[s.rows,1]);n!==null&&e.set({row:n[0],said:""}).then(()=>e.set({said:Me(e,s)}))}function Rs(e,t){let{state:s,words:n,source:o}=e,{row:r}=s,a=Math.min(Math.max(t.rows,t.columns)*E+8,js),{hidden:i}=t.links(r,s.share,q),l=Ls(e,t),c=h=>e.set({row:Math.min(Math.max(h,0),t.rows-1)}).then(()=>e.set({said:Ls(e,t)})),d=o.header.changes?.unchanged.likeliest[r];return f`
<h2>Where does it look while it writes?</h2>
<div class="bar">
${P(e,{kinds:!1})} ${L(t)}
<button @click=${()=>c(r-1)} ?disabled=${r===0}>Previous step</button>
<button @click=${()=>c(r+1)} ?disabled=${r===t.rows-1}>Next step</button>
<span class="badge">step ${r+1} of ${t.rows}</span>
<span class="badge" data-hidden>hidden: ${(100*i).toFixed(0)} % of this row</span>
</div>
${e.attention.says?f`<p class="hint">${e.attention.says}</p>`:y}
<p class="summary" data-step>${l}</p>
${d?f`<p class="hint">Most probable there: ${d.map(([h,u],m)=>f`${m?", ":""}<bdi>${h}</bdi> ${u.toFixed(3)}`)}.</p>`:y}
<div
class="links"
@scroll=${h=>Vt(e,h.currentTarget.querySelector("canvas"),t,r)}
tabindex="-1"
>
<div
class="tall"
${M(h=>{h.style.height=`${Math.max(t.rows,t.columns)*E+8}px`,h.parentElement.style.maxHeight=`${a+2}px`})}
>
<canvas
class="steps"
tabindex="0"
role="application"
aria-roledescription="steps of a translation"
aria-label="Steps; up and down arrows change the step. ${l}"
${M(h=>{h.tall=a,Hs(h.parentElement.parentElement,r),Vt(e,h,t,r)})}
@click=${h=>Ps(e,h,t)}
@keydown=${h=>{let u=O(h,[r,0],[t.rows,1]);u!==null&&c(u[0])}}
></canvas>
</div>
</div>
<p class="hint">
Left: what is written; later words are faint. Right: the source, with a bar as long as its
weight at this step. A word in several sub-words has several steps, whose rows are averaged.
</p>
<details class="twin">
<summary>The step as a table</summary>
${uo(t,r,n)}
</details>
`}function Ls(e,t){let{row:s,share:n}=e.state,{rows:o,columns:r}=e.words,{links:a}=t.links(s,n,q),i=a.slice(0,4).map(({key:c,weight:d})=>`\u201C${r[c]}\u201D (${d.toFixed(2)})`).join(", "),l=e.source.header.changes?.unchanged.probabilities[s];return`Step ${s+1}: after ${s?`\u201C${o.slice(Math.max(s-3,0),s).join(" ")}\u201D`:"<begin>"} it looks at ${i||"nothing"} and writes \u201C${o[s]}\u201D${l===void 0?"":` with probability ${l.toFixed(3)}`}.`}function uo(e,t,s){let n=new Float64Array(e.columns);for(let o=0;o<=t;o+=1)e.row(o).forEach((r,a)=>n[a]+=r);return f`<div class="scroll" tabindex="0" role="region" aria-label="The step as a table">
<table data-coverage>
<thead>
<tr>
<th scope="col">Source word</th>
<th scope="col">Weight now</th>
<th scope="col">Sum so far</th>
</tr>
</thead>
<tbody>
${s.columns.map((o,r)=>f`<tr>
<th scope="row"><bdi>${o}</bdi></th>
<td>${e.at(t,r).toFixed(4)}</td>
<td>${n[r].toFixed(4)}</td>
</tr>`)}
</tbody>
</table>
</div>`}var Us="Reading\u2026";function qs(e){let{live:t}=e.source.header;return f`<form class="live" @submit=${s=>fo(e,s)}>
<label for="sentence">${t.label}</label>
<input id="sentence" name="text" .value=${t.text} maxlength="4000" autocomplete="off" />
<button ?disabled=${e.state.busy===Us}>Read</button>
<span role="alert">${e.state.busy}</span>
</form>`}async function _e(e,t){let s=await fetch(e,{method:"POST",headers:{"Content-Type":"application/json"},body:JSON.stringify({text:t})}).catch(()=>{throw new Error("The server has ended; start it again.")}),n=await s.json();if(!s.ok)throw new Error(n.error);return n}async function fo(e,t){t.preventDefault();let s=new FormData(t.target).get("text");if(!s.trim()){e.set({busy:"The sentence is empty; write one."});return}e.set({busy:Us});try{let n=await _e("read",s);e.state.busy="",await e.replace(new F(n.header,n.arrays))}catch(n){e.set({busy:n.message})}}var mo={written:{of:"source",one:"Written word",each:"Each written word",table:"Written words",moves:"",says:"Probabilities are among all words, after the words that were written before; of a word in several sub-words the product.",ends:"The translations are written by greedy search."},next:{of:"text",one:"Next word",each:"Each next word",table:"Next words",moves:"How the probability of each next word moves",says:"Probabilities are among all words, after the words that were read before; of a word in several sub-words the product.",ends:"Words up to the changed one were predicted before it was read, so their probability stays."},masked:{of:"text",one:"Masked word",each:"Each masked word",table:"Masked words",moves:"How the probability of what was most probable moves",says:"Probabilities are among all words. Each masked word is named by what is most probable there in the text as it is.",ends:""},vectors:{of:"text",one:"Word",each:"Each word",table:"Words",moves:"How far the vector of each word stays where it was",says:"The cosine is between the vectors that the last layer gives a word before and after: 1 is the same direction. Of a word in several sub-words their mean is taken.",ends:"The model predicts no words here, so its vectors are compared."}};function Vs(e){let{header:t}=e.source,{changes:{follows:s="words",unchanged:n,erased:o}}=t,{texts:r}=(e.source.base??e.source).header,a=s!=="words"?s:r.target?"written":"next",i={written:()=>r.target,next:()=>[...r.text.slice(1),n.likeliest.at(-1)[0][0]],masked:()=>n.likeliest.map(([[b]])=>b),vectors:()=>r.text}[a](),l=a==="next"?1:0,c=Object.keys(o).map(Number),d=e.source.header.changes.now,h=c.includes(e.state.changed)?e.state.changed:null,u=$o(e,{kind:a,first:l,places:c,chosen:h,last:i.length-1}),m=b=>a==="masked"?`${i[b]} (masked place ${b+1})`:l&&b===i.length-1?`${i[b]} (what follows)`:i[b],w=b=>a==="vectors"?b.similarities:b.probabilities,$=b=>w(o[b])[u],g=c.filter(b=>a==="next"?b<=u:a!=="vectors"||b!==u),x=g.length?g:c,p=h??x[_(x.map(b=>-$(b)),1)[0]];return{kind:a,...mo[a],source:r.source??r.text,follow:i,written:u,named:m,numbers:w,unchanged:n,erased:o,places:c,place:p,all:d}}function $o({state:e},{kind:t,first:s,places:n,chosen:o,last:r}){let a=l=>Math.min(Math.max(Number(l),0),r);if(t==="written")return a(e.row);if(e.next!==void 0)return a(e.next);if(t!=="next")return a(t==="masked"?0:e.row);let i=e.row-s;return Math.max(i>=Math.min(...n)?a(i):r,o??0)}function zs(e){let t=Vs(e),{kind:s,source:n,follow:o,written:r,named:a,numbers:i,unchanged:l,erased:c,places:d,place:h,all:u}=t,m=u??c[h];if(!m)return f`<h2>What if a word were missing?</h2>
<p class="hint">
${e.engine&&e.source.answer.erasable.length?"Computing\u2026":`The ${t.of} has no word that can be erased.`}
</p>`;let w=(g,x,p)=>s==="vectors"?[g,[],i(x)[p],[]]:[g,[i(l)[p]],i(x)[p],[x.likeliest[p].map(([b,k])=>`${b} ${k.toFixed(2)}`).join(", ")]],$=g=>s==="vectors"?[g,"Cosine"]:[g,"Before","Now","Most probable now"];return f`
<h2>${e.engine?"What if it were changed?":"What if a word were missing?"}</h2>
<p class="hint">
${e.engine?"Press words above to erase them, switch heads off, or change the model.":`Choose a word of the ${t.of}:`}
</p>
${e.engine?y:f`<div class="words" role="group" aria-label="Words of the ${t.of}">
${n.map((g,x)=>d.includes(x)?f`<button
class="word"
aria-pressed=${x===h?"true":"false"}
@click=${()=>bo(e,x)}
>
<bdi>${g}</bdi>
</button>`:f`<span class="word plain"><bdi>${g}</bdi></span>`)}
</div>`}
<div class="bar">
${A(t.one,o.map((g,x)=>[x,a(x)]),r,g=>e.set(s==="written"?{row:g}:{next:g}))}
</div>
<section class="panel">
<p class="summary" data-change>${Ks(t,m,h)}</p>
${l.translation.length?f`<h3>Written from the source as it is</h3>
<p class="sentence"><bdi>${l.translation.join(" ")}</bdi></p>
${m.translation?f`<h3>
${u?"Written now":f`Written without “<bdi>${n[h]}</bdi>”`}
</h3>
<p class="sentence">${go(l.translation,m.translation)}</p>`:y}`:y}
${t.moves?f`<h3>${t.moves}</h3>
${wo(t,m)}`:y}
</section>
<div class="columns">
<section class="panel">
<h3>${t.each}</h3>
${Bs(t.table,$("Word"),o.map((g,x)=>w(a(x),m,x)),r)}
</section>
${u?y:f`<section class="panel">
<h3>“<bdi>${a(r)}</bdi>” without each word</h3>
${Bs("Erasures",$("Without"),d.map(g=>w(n[g],c[g],r)),d.indexOf(h))}
</section>`}
</div>
<p class="hint">
${t.says} An erased word keeps its place and has the mean embedding of the
${s==="written"?"sentence":"text"}'s words. ${t.ends}
</p>
`}function Ks({kind:e,source:t,follow:s,named:n,numbers:o,written:r,unchanged:a,all:i},l,c){let d=o(l)[r],h=i?"As changed":`Without \u201C${t[c]}\u201D`;if(e==="vectors"){let $=s.map((p,b)=>b).filter(p=>p!==c),g=$[_($.map(p=>-o(l)[p]),1)[0]],x=g===void 0?"":g===r?"; that of no other word moves more":`; of the other words that of \u201C${n(g)}\u201D moves most (${o(l)[g].toFixed(3)})`;return`${h}, the vector of \u201C${n(r)}\u201D has a cosine of ${d.toFixed(3)} with the one before${x}.`}if(e==="next"&&!i&&r<c)return`The probability of \u201C${n(r)}\u201D stays ${d.toFixed(3)}: the model predicts it before it reads \u201C${t[c]}\u201D.`;let[u,m]=l.likeliest[r][0],w=o(a)[r];return`${h}, the probability of \u201C${n(r)}\u201D is ${Ds(d,w)} instead of ${Ds(w,d)}${d<m?`; most probable there is \u201C${u}\u201D (${m.toFixed(3)})`:""}.`}function Ds(e,t){return e.toFixed(3)===t.toFixed(3)?e.toFixed(6):e.toFixed(3)}function wo({kind:e,follow:t,named:s,numbers:n,unchanged:o},r){let a=t.map((c,d)=>n(r)[d]-n(o)[d]),i=Math.max(...a.map(Math.abs),.1),l=c=>e==="vectors"?n(r)[c].toFixed(3):a[c]===0?"0":Math.abs(a[c])<5e-4?"0.000":`${a[c]<0?"\u2212":"+"}${Math.abs(a[c]).toFixed(3)}`;return f`<div class="words" data-moves>
${t.map((c,d)=>f`<span class="scored"
><span class="word" .style=${st(a[d],i)}><bdi>${s(d)}</bdi></span>
<small>${l(d)}</small></span
>`)}
</div>`}function go(e,t){let s=new Set(e);return t.map(n=>s.has(n)?f`<bdi>${n}</bdi> `:f`<mark><bdi>${n}</bdi></mark> `)}function Bs(e,t,s,n){return f`<div class="scroll" tabindex="0" role="region" aria-label=${e}>
<table>
<thead>
<tr>
${t.map(o=>f`<th scope="col">${o}</th>`)}
</tr>
</thead>
<tbody>
${s.map(([o,r,a,i],l)=>f`<tr class=${l===n?"chosen":""}>
<th scope="row"><bdi>${o}</bdi></th>
${r.map(c=>f`<td>${c.toFixed(3)}</td>`)}
<td>
<meter
min="0"
max="1"
value=${String(a)}
aria-label=${t.length>2?"probability":"cosine"}
></meter>
${a.toFixed(3)}
</td>
${i.map(c=>f`<td><bdi>${c}</bdi></td>`)}
</tr>`)}
</tbody>
</table>
</div>`}function bo(e,t){e.state.changed=t;let s=Vs(e);e.set({changed:t,said:Ks(s,s.erased[t],t)})}var Z=(e,t)=>Math.floor(e/t),Gs=(e,t)=>e-t*Z(e,t),po=e=>t=>e.some(([s,n])=>t>=s&&t<=n),Ys={full:[[],()=>()=>!0],causal:[[],()=>(e,t)=>t<=e],sliding_window:[["size"],e=>(t,s)=>Math.abs(t-s)<=e>>1],causal_window:[["size"],e=>(t,s)=>s<=t&&t-s<e],diagonals:[["back","ahead"],(e=null,t=null)=>(s,n)=>(e===null||n-s>=-e)&&(t===null||n-s<=t)],prefix:[["length"],e=>(t,s)=>s<e],key_span:[["start","stop"],(e=0,t=null)=>(s,n)=>n>=e&&(t===null||n<t)],lattice:[["stride"],e=>(t,s)=>(t-s)%e===0],strided:[["stride","local"],(e,t=!0)=>(s,n)=>(s-n)%e===0||t&&Math.abs(s-n)<e],dilated_window:[["size","dilation"],(e,t)=>(s,n)=>(s-n)%t===0&&Math.abs(s-n)<=t*(e>>1)],same_block:[["size","offset"],(e,t=0)=>(s,n)=>Z(s-t,e)===Z(n-t,e)],summary:[["stride","last"],(e,t=1)=>(s,n)=>Gs(n,e)>=e-t],fixed:[["stride","summary","local"],(e,t=1,s=!0)=>(n,o)=>Gs(o,e)>=e-t||s&&Z(n,e)===Z(o,e)],random_blocks:[["count","block","seed","past"],xo]},Se={key_set:e=>(t,s)=>e(s),query_set:e=>t=>e(t),global_tokens:e=>(t,s)=>e(t)||e(s)},yo=[...Object.keys(Ys),...Object.keys(Se),"per_head"],Qs={all:null,true:!0,false:!1},Te=class{constructor(t){this.text=t,this.words=[];let s=/\s*([^\W\d]\w*|-?\d+(?!\w|\.\d)|\.\.|[()&|~,=])/y,n=t.trimEnd().length;for(;s.lastIndex<n;){let o=s.lastIndex,r=s.exec(t);if(!r)throw this.error(`\u201C${t.slice(o).trim().slice(0,20)}\u201D is not understood`);this.words.push(r[1])}this.at=0}error(t){return new Error(`The pattern \u201C${this.text.slice(0,80)}\u201D cannot be read: ${t}; an example is \u201Ccausal & sliding_window(4)\u201D.`)}take(t){return this.words[this.at]!==t?!1:(this.at+=1,!0)}need(t){if(!this.take(t))throw this.error(`\u201C${t}\u201D is missing`)}whole(){let t=this.either();if(this.at<this.words.length)throw this.error(`\u201C${this.words[this.at]}\u201D follows a pattern that is complete`);return t}either(){let t=[this.both()];for(;this.take("|");)t.push(this.both());return t.length===1?t[0]:(...s)=>t.some(n=>n(...s))}both(){let t=[this.single()];for(;this.take("&");)t.push(this.single());return t.length===1?t[0]:(...s)=>t.every(n=>n(...s))}single(){if(this.take("~")){let r=this.single();return(...a)=>!r(...a)}if(this.take("(")){let r=this.either();return this.need(")"),r}let t=this.words[this.at];if(!yo.includes(t))throw this.error(t?`there is no pattern \u201C${t.slice(0,40)}\u201D here`:"a pattern is missing");if(this.at+=1,t==="per_head"){let r=this.listed(()=>this.either());return(a,i,l,c)=>r[c](a,i,l,c)}if(Object.hasOwn(Se,t))return Se[t](po(this.listed(()=>this.run())));let[s,n]=Ys[t],o=[];for(let[r,a]of this.listed(()=>this.argument(),s)){let i=r===null?o.length:s.indexOf(r);if(i<0||i>=s.length)throw this.error(`${t} takes (${s.join(", ")})`);o[i]=a}if(o.length<n.length)throw this.error(`${t} takes (${s.join(", ")})`);return n(...o)}listed(t){let s=[];if(this.take("("))for(;!this.take(")");)s.length&&this.need(","),s.push(t());return s}argument(){return this.words[this.at+1]!=="="?[null,this.value()]:(this.at+=2,[this.words[this.at-2],this.value()])}value(){let t=this.words[this.at];return Object.hasOwn(Qs,t)?Qs[this.words[this.at++]]:this.number()}number(){let t=this.words[this.at];if(!/^-?\d{1,18}$/.test(t??""))throw this.error("a whole number is missing");return this.at+=1,Number(t)}run(){let t=this.number();return[t,this.take("..")?this.number():t]}};function xo(e,t=64,s=0,n=!1){let o=new Map;return(r,a,i)=>{let l=Z(r,t),c=n?l+1:Math.ceil(i/t),d=Z(a,t);if(c<=e)return d<c;let h=`${l} ${c}`;return o.has(h)||o.set(h,ko(e,BigInt(s),BigInt(l),c)),o.get(h).has(d)}}function ko(e,t,s,n){let o=new Set;for(let r=0;r<e;r+=1){let a=n-e+r,i=vo(t,s,BigInt(r),BigInt(a+1));o.add(o.has(i)?a:i)}return o}var zt=e=>BigInt.asUintN(64,e);function vo(e,t,s,n){let o=Js(zt((t+1n)*0x9e3779b97f4a7c15n+e)),r=Js(zt(o+(s+1n)*0xc2b2ae3d27d4eb4fn));return Number((r>>32n)*n>>32n)}function Js(e){return e=zt((e^e>>30n)*0xbf58476d1ce4e5b9n),e=zt((e^e>>27n)*0x94d049bb133111ebn),e^e>>31n}function Xs(e){let t=new Te(e).whole(),s=e.includes("per_head"),n=new Map;return(o,r,a)=>{let i=`${o} ${r} ${s?a:""}`,l=n.get(i);return l||(l=Int32Array.from({length:r},(c,d)=>d).filter(c=>t(o,c,r,a)),n.size>2e4&&n.clear(),n.set(i,l)),l}}var Ao=["no pair is allowed","some pairs are allowed","all pairs are allowed"],Ee=100;function tn(e){let{patterns:t}=e.source.header,s=Math.min(e.state.pattern,t.length-1),n=e.engine?Mo(e,t[s]):t[s],o=Math.min(e.state.panel,n.panels.length-1),r=[e.source.header.title,s,o,n.panels[o].text].join("/"),a=()=>e.pairs?.key===r&&e.pairs.source===e.source?e.pairs:null;a()||Co(e,n,o,r);let i=a(),l=n.panels[o];return f`
<h2>Who may look at whom?</h2>
<div class="bar">
${t.length>1?A("Used in",t.map(({name:c},d)=>[d,c]),s,c=>e.set({pattern:Number(c),panel:0})):y}
${n.panels.length>1?A("Heads",n.panels.map(({heads:c},d)=>[d,c.join(", ")]),o,c=>e.set({panel:Number(c)})):y}
${n.drawable?ce(e,n.drawable):y}
<span class="badge">counted exactly</span>
</div>
<p class="summary">
<code><bdi>${l.text}</bdi></code
>: ${Gt(l.pairs)} of ${Gt(n.q_len*n.k_len)} pairs
(${Fe(l.pairs,n.q_len*n.k_len)}).
</p>
<p class="hint">
Rows: queries. Columns: keys.
${n.rows.length?"Sub-words, as the model reads them. ":""}${n.q_start?`Queries are at positions ${n.q_start} to ${n.q_start+n.q_len-1}. `:""}${n.tile>1?`Each cell stands for ${n.tile} \xD7 ${n.tile} pairs. `:""}${n.note}${n.drawable?"Draw with the mouse, or press the space bar, to allow pairs and to forbid them; the text of the pattern follows.":""}
</p>
${i?Oo(e,i):f`<p class="hint">Unpacking…</p>`} ${Fo(n.tile>1)}
${n.growth.length?Io(n):y}
${i?f`<details class="twin">
<summary>The ${n.tile>1?"rows":"queries"} as a table</summary>
${Lo(i)}
</details>`:y}
`}function Mo(e,t){let{source:{header:{model:s},answer:n}}=e,o=s.kinds.find(({name:$})=>t.name.startsWith(`${$},`)),{kind:r,rows:a,columns:i}=o,l=$=>n.pieces[$==="read"?"target":$],c=le(e,r),d=c||t.text,h=l(a),u=l(i),m=d.includes("per_head")?e.source.header.attentions.find($=>$.kind===r).shape[1]:0,w=$=>{let g=en(d,o,h.length,u.length,$[0]);return{heads:$,text:d,states:g,shape:[h.length,u.length],pairs:g.reduce((x,p)=>x+p,0)/2}};return{...t,text:d,rows:h,columns:u,q_len:h.length,k_len:u.length,drawable:o,growth:c?[]:t.growth.slice(1),panels:m?Array.from({length:m},($,g)=>w([g])):[w([])]}}function en(e,{unwritten:t},s,n,o=0){let r=new Uint8Array(s*n),a;try{a=Xs(t?`causal & (${e})`:e)}catch{return r}for(let i=0;i<s;i+=1)for(let l of a(i,n,o))r[i*n+l]=2;return r}var sn="\\(query_set\\([\\d., ]+\\) & key_set\\([\\d., ]+\\)\\)",_o=new RegExp(`( \\| ${sn})+$`),So=new RegExp(`( & ~${sn})+$`);function To(e){let t=e.replace(So,"");return(t!==e&&t.includes("|")?t.replace(/^\((.*)\)$/s,"$1"):t).replace(_o,"")}function Zs(e){let t=[];for(let s of e)t.at(-1)?.[1]===s-1?t.at(-1)[1]=s:t.push([s,s]);return t.map(([s,n])=>s===n?s:`${s}..${n}`).join(", ")}function Eo({states:e,rows:t,columns:s,one:n,panel:o}){let r=To(o.text),a=en(r,n.drawable,t,s,o.heads[0]),i=[[],[]];[2,0].forEach((c,d)=>{let h=new Map;for(let u=0;u<t;u+=1){let m=Zs(Array.from({length:s},(w,$)=>$).filter(w=>e[u*s+w]===c&&a[u*s+w]!==c));m&&h.set(m,[...h.get(m)??[],u])}for(let[u,m]of h)i[d].push(`(query_set(${Zs(m)}) & key_set(${u}))`)});let l=[r,...i[0]].join(" | ");return[i[1].length&&l.includes("|")?`(${l})`:l,...i[1].map(c=>`~${c}`)].join(" & ")}async function Co(e,t,s,n){let o=t.panels[s],[r,a]=o.shape,i=o.states??await e.source.bytes(o.place);e.pairs={key:n,source:e.source,one:t,panel:o,rows:r,columns:a,states:i},o.states||e.draw()}function Oo(e,t){let s=nn(e,t),n=Ce(t,...s);return f`<div class="map" tabindex="-1">
<canvas
class="pattern"
tabindex="0"
role="application"
aria-roledescription="map of pairs"
aria-label="Pairs; arrow keys move. ${n}"
${M(o=>rn(e,o,t))}
@pointermove=${o=>Oe(e,o,t)}
@click=${o=>Oe(e,o,t)}
@pointerdown=${o=>No(e,o,t)}
@pointerup=${()=>Kt(e,t)}
@pointerleave=${()=>Kt(e,t)}
@keydown=${o=>{o.key===" "&&t.one.drawable&&(o.preventDefault(),Ne(t,s,!t.states[s[0]*t.columns+s[1]]),Kt(e,t));let r=O(o,s,[t.rows,t.columns]);r&&e.set({pair:r,said:Ce(t,...r)})}}
></canvas>
<div class="cursor" aria-hidden="true"></div>
</div>
<p class="readout" data-readout>${n}</p>`}function nn(e,{rows:t,columns:s}){let[n,o]=e.state.pair??[0,0];return[Math.min(n,t-1),Math.min(o,s-1)]}function on({states:e,columns:t,one:s},n){let o=[],r=0;for(let i=0;i<t;i+=1)e[n*t+i]&&(r+=1,o.length&&o[o.length-1][1]===i-1?o[o.length-1][1]=i:o.push([i,i]));let a=o.slice(0,6).map(([i,l])=>{let[c,d]=[i*s.tile,Math.min((l+1)*s.tile,s.k_len)-1];return c===d?`${c}`:`${c} to ${d}`}).join(", ");return{count:r,named:a+(o.length>6?` and ${o.length-6} more spans`:"")}}function Ce(e,t,s){let{one:n,states:o,columns:r,rows:a}=e,i=o[t*r+s];if(n.tile>1){let u=(m,w)=>`${m*n.tile} to ${Math.min((m+1)*n.tile,w)-1}`;return`Queries ${u(t,n.q_len)}, keys ${u(s,n.k_len)}: ${Ao[i]}.`}let l=(u,m)=>u.length?`${m} \u201C${u[m]}\u201D`:`${m}`,{count:c,named:d}=on(e,t),h=0;for(let u=0;u<a;u+=1)h+=o[u*r+s]?1:0;return`Query ${l(n.rows,t)} ${i?"may":"may not"} look at key ${l(n.columns,s)}. It may look at ${c} of ${r} keys${c?`: ${d}`:""}; ${h} of ${a} queries may look at this key.`}function rn(e,t,s){let{one:n,rows:o,columns:r,states:a}=s,i=xe(t,{rows:o,columns:r});n.rows.length||Object.assign(i,{named:!1,left:40,right:16,top:24});let{cell:l,left:c,right:d,top:h}=i,u=C(t);t.place=i;let m=I(t,c+r*l+d,h+o*l+2),w=l>=8?1:0,$=new OffscreenCanvas(r,o),g=$.getContext("2d");m.fillStyle=u.unseen,m.fillRect(c,h,r*l,o*l);for(let x=0;x<o;x+=1)for(let p=0;p<r;p+=1){let b=a[x*r+p];if(!b)continue;let[k,v,S,T]=w?[m,c+p*l,h+x*l,l-w]:[g,p,x,1];k.globalAlpha=b===1?.45:1,k.fillStyle=u.accent,k.fillRect(v,S,T,T)}m.globalAlpha=1,m.imageSmoothingEnabled=l<1,w||m.drawImage($,c,h,r*l,o*l),i.named?ke(m,n,i,u):ve(m,{rows:o,columns:r},i,u,n.tile),mt(t,...nn(e,s))}function Oe(e,t,s){let n=t.currentTarget,[o,r]=qt(t,s);if(o===void 0)return;mt(n,o,r),s.stroke&&(Ne(s,[o,r],s.stroke.allow),rn(e,n,s));let a=Ce(s,o,r);t.type==="click"?(t.pointerType==="touch"&&s.one.drawable&&Ne(s,[o,r],!s.states[o*s.columns+r]),Kt(e,s),e.set({pair:[o,r],said:a})):Ht(n.parentElement.nextElementSibling,a)}function No(e,t,s){let[n,o]=qt(t,s);n===void 0||!s.one.drawable||t.button||t.pointerType==="touch"||(s.stroke={allow:!s.states[n*s.columns+o]},Oe(e,t,s))}function Ne(e,[t,s],n){e.one.drawable.unwritten&&s>t||(e.states[t*e.columns+s]=n?2:0,e.drawn=!0)}function Kt(e,t){t.stroke=null,t.drawn&&(t.drawn=!1,Nt(e,t.one.drawable.kind,Eo(t)))}function Fo(e){return f`<p class="legend">
<i class="allowed"></i><span>${e?"all allowed":"may look"}</span>
${e?f`<i class="allowed some"></i><span>some allowed</span>`:y}
<i class="masked"></i><span>${e?"none allowed":"may not look"}</span>
</p>`}function Io(e){return f`<h3>How it grows with the length</h3>
<div class="scroll" tabindex="0" role="region" aria-label="Pairs by length">
<table data-growth>
<thead>
<tr>
<th scope="col">Length</th>
<th scope="col">Allowed pairs</th>
<th scope="col">Share of all</th>
<th scope="col">Computed here</th>
<th scope="col">Backend</th>
<th scope="col">A query may look at</th>
</tr>
</thead>
<tbody>
${e.growth.map(({length:t,pairs:s,of:n,computed:o,backend:r},a)=>{let i=a===0&&!e.drawable;return f`<tr>
<th scope="row">${Gt(t)}${i?" (shown)":""}</th>
<td>${Gt(s)}</td>
<td>${Fe(s,n)}</td>
<td>${o===null?"\u2014":Fe(o,1)}</td>
<td>${r}</td>
<td>${jo(s/(n/(i?e.k_len:t)))} keys</td>
</tr>`})}
</tbody>
</table>
</div>
<p class="hint">
Computed here: the share of all pairs that the backend computes which regard chooses on this
machine's CPU for heads of 64 numbers; short rows are computed in whole blocks. Where allowed
pairs grow as fast as the length, attention takes linear time.
</p>`}function Lo(e){let{one:t,rows:s}=e,n=Array.from({length:Math.min(s,Ee)},(o,r)=>r);return f`<div class="scroll" tabindex="0" role="region" aria-label="Queries as a table">
<table>
<thead>
<tr>
<th scope="col">${t.tile>1?"Queries from":"Query"}</th>
${t.rows.length?f`<th scope="col">Word</th>`:y}
<th scope="col">${t.tile>1?"Tiles":"Keys"}</th>
<th scope="col">Which</th>
</tr>
</thead>
<tbody>
${n.map(o=>{let{count:r,named:a}=on(e,o);return f`<tr>
<td>${o*t.tile}</td>
${t.rows.length?f`<th scope="row"><bdi>${t.rows[o]}</bdi></th>`:y}
<td>${r}</td>
<td>${a||"none"}</td>
</tr>`})}
</tbody>
</table>
</div>
${s>Ee?f`<p class="hint">The first ${Ee} of ${s}.</p>`:y}`}function Gt(e){return e.toLocaleString("en")}function jo(e){return e.toLocaleString("en",{maximumFractionDigits:1})}function Fe(e,t){let s=100*e/t;return`${s>=.1||s===0?s.toFixed(1):s.toPrecision(2)} %`}var $t={erase:{title:"Erasure",says:"Each word is erased in turn. A positive number is how much the model's preference for the word falls."},gradients:{title:"Integrated gradients",says:"The preference for the word is divided among the words that were read. Negative numbers speak against it."},attention:{title:"Raw attention",says:"Where all heads look on average while the word is written. It does not say what the model uses."},rollout:{title:"Attention rollout",says:"Attention multiplied through all layers. A weak lens: it ignores what the layers compute."}},Wo=2,Qt=200;function hn(e,t){let{header:s}=e.source;return s.written&&(e.engine||Object.keys(s.explained).length)?Ho(e):Do(e,t)}function Ho(e){let{header:t}=e.source,s=t.texts[t.written],n=c=>t.explained[c]||e.engine&&s[c]!=="<begin>"&&s[c]!=="<end>",o=n(e.state.place??t.chosen)?e.state.place??t.chosen:t.chosen,r=t.explained[o];r||rt(e);let a=f`<h2>What does this word depend on?</h2>
${e.engine&&t.texts.target?y:f` <p class="hint">Choose a ${t.texts.source?"written word":"word"}:</p>
<div class="words" role="group" aria-label="Words to explain">
${s.map((c,d)=>n(d)?f`<button
class="word"
aria-pressed=${d===Number(o)?"true":"false"}
@click=${()=>e.set({place:d,row:d,said:t.explained[d]?.length?dn(t.explained[d][0]):""})}
>
<bdi>${c}</bdi>
</button>`:f`<span class="word plain"><bdi>${c}</bdi></span>`)}
</div>`}`;if(!r?.length)return f`${a}
<p class="hint" role="status">
${r?"Nothing was read before this word.":"Computing what it depends on\u2026"}
</p>`;let i=r.find(c=>c.lens===(e.state.lens??"erase"))??r[0],l=r.find(c=>c.lens==="attention");return f`${a}
<p class="question">
Why <strong><bdi>${i.word}</bdi></strong> rather than ${Po(i.others)}? Log odds
${i.log_odds.toFixed(2)}, probability ${i.probability.toFixed(3)} among these.
</p>
<div class="columns">
${an(e,i,f`<h3>By a lens</h3>
${A("Lens",r.map(c=>[c.lens,$t[c.lens].title]),i.lens,c=>e.set({lens:c}))}`)}
${l&&l!==i?an(e,l,f`<h3>${$t.attention.title}</h3>`):y}
</div>
<p class="hint">
The words that <bdi>${i.word}</bdi> is compared with are those that the model found most
probable beside it, unless others were asked for. “<bdi>&lt;begin&gt;</bdi>” and
“<bdi>&lt;end&gt;</bdi>” are never erased.
</p> `}function Po(e){return e.map((t,s)=>f`${s?s===e.length-1?" or ":", ":""}<bdi>${t}</bdi>`)}function dn(e){let t=o=>_(o.map(([,r])=>r),Wo).filter(r=>o[r][1]>0).map(r=>`\u201C${o[r][0]}\u201D (${Ie(e,o[r][1])})`).join(", then ")||"none of these words";if(e.lens!=="attention"&&e.lens!=="rollout")return`${$t[e.lens].title}: \u201C${e.word}\u201D depends most on ${t([...e.source,...e.written])}.`;let s=[[e.source,"in the source"],[e.written,"in what was written"]].filter(([o])=>o.length),n=s.map(([o,r])=>`${s.length>1?`${r} `:""}at ${t(o)}`).join("; ");return`${$t[e.lens].title}: \u201C${e.word}\u201D looks most ${n}.${s.length>1?" The weights of each side sum to 1.":""}`}function Ie(e,t){return e.lens==="attention"||e.lens==="rollout"?t.toFixed(2):`${t<0?"\u2212":"+"}${Math.abs(t).toFixed(2)}`}function an(e,t,s){let n=Math.max(...[...t.source,...t.written].map(([,r])=>Math.abs(r)),0),o=[["In the source",t.source],["In what was already written",t.written]];return f`<section class="panel" data-lens=${t.lens}>
<div class="bar">${s}</div>
<p class="summary">${dn(t)}</p>
${o.map(([r,a])=>a.length?f`<h4>${r}</h4>
<div class="words">
${a.map(([i,l])=>Ro(e,t,i,l,n))}
</div>`:y)}
<p class="hint">${$t[t.lens].says} <span class="faint">${t.cost}.</span></p>
</section>`}function Ro(e,t,s,n,o){let a=t.lens==="attention"||t.lens==="rollout"?nt(o?n/o:0):st(n,o),i=`${s}: ${Ie(t,n)}`;if(t.lens==="erase"){let l=1/(1+Math.exp(-(t.log_odds-n)));i+=`; without it the probability of ${t.word} is ${l.toFixed(3)} instead of ${t.probability.toFixed(3)}`}return f`<span class="scored" title=${i}
><span class="word" .style=${a}><bdi>${s}</bdi></span>
<small>${Ie(t,n)}</small></span
>`}function Do(e,t){let{state:s}=e,{rows:n,columns:o}=e.words,r=t.row(s.row),a=r[_(r,1)[0]],[i,l]=ln(s.row,n.length),[c,d]=n===o?[i,l]:ln(_(r,1)[0],o.length);return f`
<h2>Where does this word look?</h2>
<p class="hint">
These are weights without a model, so they say where it looks and not what it uses.
${e.attention.sums??""}
</p>
<div class="bar">${P(e)} ${L(t)}</div>
<p class="hint">Choose a word (${e.attention.row_title})${cn(i,l,n.length)}:</p>
<div class="words" role="group" aria-label="Words">
${n.slice(i,l).map((h,u)=>f`<button
class="word"
aria-pressed=${i+u===s.row?"true":"false"}
@click=${()=>e.set({row:i+u})}
>
<bdi>${h}</bdi>
</button>`)}
</div>
<section class="panel">
<h3><bdi>${n[s.row]}</bdi> looks at</h3>
<div class="words">
${o.slice(c,d).map((h,u)=>f`<span class="scored">
<span class="word" .style=${nt(a?r[c+u]/a:0)}
><bdi>${h}</bdi></span
>
<small>${r[c+u].toFixed(2)}</small></span
>`)}
</div>
<p class="hint">
${cn(c,d,o.length)} The row sums to ${Bo(r).toFixed(3)}; entropy
${t.entropy(s.row).toFixed(2)} nats.
</p>
</section>
`}function ln(e,t){if(t<=Qt)return[0,t];let s=Math.min(Math.max(e-Qt/2,0),t-Qt);return[s,s+Qt]}function cn(e,t,s){return t-e<s?` Words ${e} to ${t-1} of ${s} are shown.`:""}function Bo(e){let t=0;for(let s of e)t+=s;return t}var V=16,un=1024,Le=20,Uo=1800,qo=700,Vo="http://www.w3.org/1998/Math/MathML",zo=new Set(["math","mrow","mi","mn","mo","mtext","msub","msup","msubsup","mfrac","msqrt"]);function mn(e){let t=Ko(e);if(!t)return f`<h2>Step by step</h2>
<p class="hint" role="status">${e.walkFailed??"Computing every step\u2026"}</p>`;let{steps:s,note:n}=t.record;if(!s.length)return f`<h2>Step by step</h2>
<p class="hint">${n}</p>`;let o=Math.min(e.state.step,s.length-1),r=s[o],a=[...new Set(s.map(({section:h})=>h))],i=Go(e,t.record),l=`${o}/${i.join()}`;(e.stepShown?.key!==l||e.stepShown.walk!==t)&&Qo(e,t,r,i,l);let c=e.stepShown?.key===l&&e.stepShown.walk===t?e.stepShown:null,d=e.engine&&e.source.header.walk&&(e.source.base||e.source.given.source!==e.source.header.model.text);return f`
<h2>Step by step</h2>
${d?f`<p class="hint">These steps were stored when the page was made, for “<bdi>${e.source.header.model.text}</bdi>” and the model as trained.</p>`:y}
<div class="bar">
${A("Part",a.map((h,u)=>[u,h]),a.indexOf(r.section),h=>gt(e,t,s.findIndex(({section:u})=>u===a[h])))}
${He(t.record).map((h,u)=>A(u?"and of the source":"Word followed",t.record.labels[h].map((m,w)=>[w,m]),i[u],m=>e.set({followed:Object.assign([...i],{[u]:Number(m)})})))}
<button @click=${()=>gt(e,t,o-1)} ?disabled=${o===0}>Previous step</button>
<button @click=${()=>gt(e,t,o+1)} ?disabled=${o===s.length-1}>
Next step
</button>
<button
aria-pressed=${String(!!e.runs)}
@click=${()=>Xo(e,t)}
?disabled=${o===s.length-1}
>
${e.runs?"Stop":"Run"}
</button>
<label class="choice"
><input
type="checkbox"
.checked=${$n(e)}
@change=${h=>e.set({motion:h.target.checked?"on":"off"})}
/><span>Motion</span></label
>
<span class="badge">step ${o+1} of ${s.length}</span>
</div>
<section
class="panel step"
tabindex="0"
aria-roledescription="step"
aria-label="Left and right arrows change the step. ${gn(r)}"
@keydown=${h=>sr(e,h,t,o)}
>
<h3>${r.title}</h3>
${r.says?f`<p>${r.says}</p>`:y}
${r.formula?f`<div class="formula" ${M(h=>h.replaceChildren(bn(r.formula)))}></div>`:y}
<pre><code>${r.line}</code></pre>
<p class="hint" data-shape>${er(r)}</p>
${c?Zo(e,t,r,c):f`<p class="hint">Unpacking…</p>`}
</section>
<p class="hint">
${n} ${t.record.checks} results were compared with the model's own; the largest
difference is ${t.record.difference.toExponential(1)}. Numbers are computed with 64 bits
and stored with 32. Sentences that name a word are about
“<bdi>${t.record.words[t.record.word]}</bdi>”.
</p>
`}function Ko(e){let{source:t}=e;if(t.header.walk)return t.walk??={record:t.header.walk,source:t};if(t.walk||e.walkAsked===t)return t.walk;e.walkAsked=t,e.walkFailed=void 0,_e("walk",t.given?.source??t.header.live.text).then(s=>{t.walk={record:s.walk,source:new F({},s.arrays)},e.draw()},s=>{e.walkFailed=s.message,e.draw()})}function He({steps:e,labels:t,words:s}){let n=t.findIndex(r=>r.length===s.length&&r.every((a,i)=>a===s[i])),o=new Set(n<0?[]:[n]);for(let{axes:r}of e)for(let a of r)a.unit==="words"&&a.chosen!==null&&a.labels!==null&&o.add(a.labels);return[...o]}function Go(e,t){return He(t).map((s,n)=>{let o=n===0?t.word:t.steps.flatMap(({axes:a})=>a).find(a=>a.labels===s&&a.chosen!==null).chosen,r=e.state.followed?.[n]??o;return Math.min(r,t.labels[s].length-1)})}async function Qo(e,t,s,n,o){if(e.stepAsked===o&&e.stepFor===t)return;if(Object.assign(e,{stepAsked:o,stepFor:t}),s.words){Object.assign(e,{stepShown:{key:o,walk:t,words:s.words}}),e.draw();return}let r=await t.source.bytes(s.place),a=new Float32Array(r.buffer),i=He(t.record),{axes:l}=s,c=null,d=a;if(s.only!==void 0)c=s.only,l=l.filter((g,x)=>x!==c);else if(l.length>1){let g=l.findIndex(({chosen:x})=>x!==null);if(g>=0){let x=n[Math.max(i.indexOf(l[g].labels),0)];d=Jo(a,l.map(({size:p})=>p),g,Math.min(x,l[g].size-1)),l=l.filter((p,b)=>b!==g)}}let h=l[l.length-1],u=0;for(let g of a)Number.isFinite(g)&&(u=Math.max(u,Math.abs(g)));let m=l.length>1?l[l.length-2]:null,{stepShown:w}=e,$=w?.values&&w.walk===t&&w.step!==s?{value:w.values[Pe(e,w)],title:w.step.title}:null;e.stepShown={key:o,walk:t,step:s,values:d,rows:m,columns:h,most:u,only:c,before:$},e.draw()}function Jo(e,t,s,n){let o=t.slice(s+1).reduce((i,l)=>i*l,1),r=t.slice(0,s).reduce((i,l)=>i*l,1),a=new Float32Array(r*o);for(let i=0;i<r;i+=1){let l=(i*t[s]+n)*o;a.set(e.subarray(l,l+o),i*o)}return a}function $n({state:{motion:e}}){return e?e==="on":!matchMedia("(prefers-reduced-motion: reduce)").matches}function Pe({follows:e={}},{rows:t,columns:s}){let n=o=>o?Math.min(e[je(o)]??0,o.size-1):0;return n(t)*s.size+n(s)}var je=({unit:e,labels:t,size:s})=>`${e} ${t??s}`;function wn(e,{rows:t,columns:s},n){e.follows={...e.follows,[je(s)]:n%s.size,...t?{[je(t)]:Math.floor(n/s.size)}:{}},e.draw()}function Yo(e,t,s){let n=t.getBoundingClientRect(),{flight:o}=e;if(e.flight={step:s,box:n,text:t.textContent},!o||o.step===s||!$n(e))return;let r=document.createElement("span");r.className="flying",r.textContent=o.text,t.closest(".step").append(r);let a=({left:i,top:l})=>({transform:`translate(${i}px, ${l}px)`});r.animate([a(o.box),a(n)],{duration:qo,easing:"ease-in-out"}).finished.then(()=>r.remove(),()=>r.remove())}function Xo(e,t){let s=()=>{let n=e.state.view!=="walk"||e.state.step>=t.record.steps.length-1;e.runs=n?null:setTimeout(s,Uo),n?e.draw():gt(e,t,e.state.step+1)};return e.runs?(clearTimeout(e.runs),e.runs=null,e.draw()):s()}function Zo(e,t,s,n){if(n.words)return f`<ol class="words">
${n.words.map(g=>f`<li class="word"><bdi>${g}</bdi></li>`)}
</ol>`;let{values:o,rows:r,columns:a,only:i,before:l}=n,c=Pe(e,n),d=g=>g.labels===null?null:t.record.labels[g.labels],h=i===null?y:f`<p class="hint">
Too many numbers to store for every word; these are those of the word that was followed
when the page was made.
</p>`;if(!r&&d(a)&&a.size>2*Le)return f`${h}${tr(s,n,d(a))}`;let u=r?Math.min(a.size,Math.max(Math.floor(un/r.size),1)):Math.min(a.size,un),m=a.size-u,w=r?Array.from({length:r.size},(g,x)=>({head:fn(r,d(r),x),from:x*a.size,to:x*a.size+u})):d(a)?[{head:"",from:0,to:u}]:Array.from({length:Math.ceil(u/V)},(g,x)=>({head:`${x*V} to ${Math.min((x+1)*V,u)-1}`,from:x*V,to:Math.min((x+1)*V,u)})),$=r||d(a);return f`${h}
<div class="scroll" tabindex="0" role="region" aria-label="Numbers of the step">
<table class="numbers">
<thead>
<tr>
<td></td>
${Array.from({length:$?u:Math.min(V,u)},(g,x)=>f`<th scope="col">
${$?f`<bdi>${fn(a,d(a),x)}</bdi>`:`+${x}`}
</th>`)}
</tr>
</thead>
<tbody>
${w.map(({head:g,from:x,to:p})=>f`<tr>
${g?f`<th scope="row"><bdi>${g}</bdi></th>`:f`<td></td>`}
${Array.from(o.subarray(x,p),(b,k)=>x+k===c?f`<td
class="followed"
.style=${We(s,b,n.most)}
title=${String(b)}
${M(v=>Yo(e,v,s))}
>
${wt(b)}
</td>`:f`<td
.style=${We(s,b,n.most)}
title=${String(b)}
@click=${()=>wn(e,n,x+k)}
>
${wt(b)}
</td>`)}
</tr>`)}
</tbody>
</table>
</div>
<p class="hint" data-followed>
The number
followed${l?f` was ${wt(l.value)} in “${l.title}”, and`:""} is
${wt(o[c])}. Press another to follow it, or Shift and an arrow.
</p>
${m?f`<p class="hint">… ${m} more ${a.unit} in each row.</p>`:y}`}function fn(e,t,s){return t?t[s]:String(s)}function We(e,t,s){return t===-1/0?"":e.scale==="weights"?nt(t):e.scale==="signed"?st(t,s):""}function wt(e){if(e===-1/0)return"\u2212\u221E";if(Number.isInteger(e)&&Math.abs(e)<1e6)return String(e).replace("-","\u2212");let t=Math.abs(e)<1e3?e.toFixed(3):e.toPrecision(3);return(Number(t)===0?t.replace("-",""):t).replace("-","\u2212")}function tr(e,{values:t,most:s},n){let o=_(t,Le);return f`<div
class="scroll"
tabindex="0"
role="region"
aria-label="The largest numbers of the step"
>
<table class="numbers">
<thead>
<tr>
<th scope="col">Id</th>
<th scope="col">Sub-word</th>
<th scope="col">Number</th>
</tr>
</thead>
<tbody>
${o.map(r=>f`<tr>
<td>${r}</td>
<th scope="row"><bdi>${n[r]}</bdi></th>
<td .style=${We(e,t[r],s)} title=${String(t[r])}>
${wt(t[r])}
</td>
</tr>`)}
</tbody>
</table>
</div>
<p class="hint">The ${Le} largest of ${t.length.toLocaleString("en")}.</p>`}function er(e){let t=e.axes.map(({size:s,unit:n})=>`${s.toLocaleString("en")} ${s===1?n.replace(/s$/,""):n}`).join(" \xD7 ");return e.words||e.axes.length<2?t:`${t}; shown for the followed word`}function gn(e){return`${e.section}: ${e.title}.`}function gt(e,t,s){let{steps:n}=t.record,o=Math.min(Math.max(s,0),n.length-1);e.set({step:o,said:`Step ${o+1} of ${n.length}. ${gn(n[o])}`})}function sr(e,t,s,n){if(t.target!==t.currentTarget)return;let{steps:o}=s.record,r=e.stepShown,a={ArrowRight:1,ArrowLeft:-1,ArrowDown:r?.rows?r.columns.size:V,ArrowUp:r?.rows?-r.columns.size:-V}[t.key];if(t.shiftKey&&a&&r?.values)return t.preventDefault(),wn(e,r,Math.min(Math.max(Pe(e,r)+a,0),r.values.length-1));let i=c=>{for(let d=n+c;d>=0&&d<o.length;d+=c)if(o[d].section!==o[n].section)return c>0?d:o.findIndex(({section:h})=>h===o[d].section);return c>0?o.length-1:0},l={ArrowRight:n+1,ArrowLeft:n-1,Home:0,End:o.length-1,PageDown:i(1),PageUp:i(-1)}[t.key];if(l!==void 0)return t.preventDefault(),gt(e,s,l)}function bn([e,...t]){let s=document.createElementNS(Vo,zo.has(e)?e:"mtext");return e==="math"&&s.setAttribute("display","block"),e==="mo"&&"()[]|".includes(t[0])&&s.setAttribute("stretchy","false"),s.append(...t.map(n=>Array.isArray(n)?bn(n):n)),s}var pn=({attentions:e})=>e.findIndex(({rows:t,columns:s})=>t==="target"&&s==="source"),bt=e=>e.attentions.length>0,tt={reader:{title:"Reader",draw:hn,fits:bt},heads:{title:"Heads",draw:vs,fits:bt},map:{title:"Heat map",draw:Os,fits:bt},links:{title:"Links",draw:Ws,fits:bt},steps:{title:"Translation",draw:Rs,fits:e=>pn(e)>=0,kind:pn},change:{title:"What if",draw:zs,fits:e=>!!e.changes},pattern:{title:"Pattern",draw:tn,fits:e=>e.patterns.length>0},walk:{title:"Walk-through",draw:mn,fits:e=>!!(e.walk??e.live?.walk)},compare:{title:"Compare",draw:xs,fits:bt}},yn=["view","kind","layer","head","row","scale","theme","share","sort","pattern","panel","step","motion","text",...Object.keys(X)],Jt=class{constructor(t,s,n,o=null){Object.assign(this,{element:t,source:s,engine:o,stored:s.stored}),this.state={view:"reader",kind:0,layer:0,head:"mean",row:s.header.chosen,column:0,scale:"linear",theme:"system",share:.8,sort:"layer",said:"",busy:"",pattern:0,panel:0,step:0},this.state.layer=(s.header.attentions[0]?.shape[0]??1)-1,Object.assign(this.state,o?{text:s.given.source,...X}:{},n),this.#t()}get attention(){return this.source.header.attentions[this.state.kind]}get words(){return this.source.words(this.attention)}set(t){return Object.assign(this.state,t),this.#t(),this.#e(),this.draw()}replace(t){let s=this.engine&&t.given.source===this.source.given.source;this.source=t;for(let n of s?[]:["place","changed","next","pair","followed"])delete this.state[n];return this.set({...s?{}:{kind:this.engine?this.state.kind:0,row:t.header.chosen,column:0},said:t.header.title})}async draw(){let{kind:t,layer:s,head:n}=this.state,o=this.turn=(this.turn??0)+1,r=this.attention?await this.source.head(t,s,n):null;o===this.turn&&(document.documentElement.dataset.theme=this.state.theme,Ze(nr(this,r),this.element),this.element.dataset.ready="yes")}#t(){let{state:t}=this,{header:s}=this.source,n=(l,c)=>Math.min(Math.max(Math.trunc(Number(l))||0,0),Math.max(c-1,0));(!Object.hasOwn(tt,t.view)||!tt[t.view].fits(s))&&(t.view=Object.keys(tt).find(l=>tt[l].fits(s))),t.kind=n(tt[t.view].kind?.(s)??t.kind,s.attentions.length);let[o,r,a,i]=this.attention?.shape??[1,1,1,1];t.layer=n(t.layer,o),t.head=r===1?0:t.head==="mean"?"mean":n(t.head,r),t.row=n(t.row,a),t.column=n(t.column,i),t.share=Math.min(Math.max(Number(t.share)||.8,.05),1),t.pattern=n(t.pattern,s.patterns.length),t.step=Math.max(Math.trunc(Number(t.step))||0,0),t.panel=n(t.panel,s.patterns[t.pattern]?.panels.length??1),Object.hasOwn(St,t.scale)||(t.scale="linear"),["system","light","dark"].includes(t.theme)||(t.theme="system")}#e(){let t=Object.fromEntries(yn.filter(n=>n in this.state).map(n=>[n,String(this.state[n])]));parent!==window&&parent.postMessage({regard:t},"*");let s=new URLSearchParams(t);try{history.replaceState(null,"",`#${s}`)}catch{}}};function xn(e){return kn(Object.fromEntries(new URLSearchParams(e.slice(1))))}function kn(e){return Object.fromEntries(yn.filter(t=>Object.hasOwn(e,t)).map(t=>[t,String(e[t])]))}function nr(e,t){let{state:s,source:n}=e;return f`
<header class="top">
<h1 class=${e.engine?"said":""}><bdi>${n.header.title}</bdi></h1>
${e.engine?ms(e):n.header.live?qs(e):y}
<nav aria-label="Views">
${Object.entries(tt).filter(([,o])=>o.fits(n.header)).map(([o,r])=>f`<button
aria-current=${o===s.view?"page":"false"}
@click=${()=>e.set({view:o})}
>
${r.title}
</button>`)}
</nav>
</header>
<main>${tt[s.view].draw(e,t)}</main>
<p class="said" role="status" aria-live="polite">${s.said}</p>
<footer>
${n.header.notes.map(o=>f`<p>${o}</p>`)}
<p>
Attention alone is not an explanation: a model can look at a word without using it. Made by
regard ${n.header.version}; this page loads nothing from a network.
</p>
${A("Colours",Object.entries({system:"of the system",light:"light",dark:"dark"}),s.theme,o=>e.set({theme:o}))}
</footer>
`}async function or(e,t){e.textContent="Unpacking the model\u2026";let s=new Ot(t.header),n=xn(location.hash),o={text:t.header.model.text,...X};window.regard={ready:s.ready,run:l=>s.run(l),engine:s,shown:[],coloured:[]};let[r,a]=[null,""];try{r=await s.play(t,{...o,...n})}catch(l){a=l.message;for(let c of Object.keys(o))delete n[c];r=await s.play(t,o)}(await s.ready).checked||(a||="This address is not secure (https), so the browser could not check the hash of the model."),e.replaceChildren();let i=new Jt(e,r,n,s);return await i.set({busy:a}),window.regard.opened=performance.now(),rt(i),i}async function rr(e){let t=is();if(t.header.model)return or(e,t);e.replaceChildren();let s=new Jt(e,t,xn(location.hash));return await s.draw(),s}var pt=document.getElementById("regard-explorer");pt&&rr(pt).then(e=>{addEventListener("resize",()=>e.draw()),addEventListener("message",({source:t,data:s})=>{t===parent&&parent!==window&&s?.regard instanceof Object&&e.set(kn(s.regard))})},e=>{pt.textContent=e.message,pt.setAttribute("role","alert"),pt.dataset.ready="failed"});export{Jt as App};
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
